"""Sealed jobs in transactions of their own, and jobs from SQL, which cannot seal."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from headrace import App, Client, Job, JobState, Settings
from tests.bind.conftest import FAST, Shop


def sealing_app(shop: Shop, compress_over: int | None = 1_024, **more: Any) -> App:
    payloads = {"compress_over": compress_over, "sealing": {"keys": "env:JOB_KEYS", **more}}
    settings = Settings.load({"url": shop.url, "worker": FAST, "payloads": payloads}, env={}, toml={})
    return App(Client(shop._make(), settings))


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_KEYS", f"a:{bytes(range(32)).hex()}")


@pytest.mark.parametrize("size", [1, 100_000])
async def test_enqueued_and_completed_in_a_transaction(shop: Shop, size: int) -> None:
    app, text = sealing_app(shop, compress_over=None), "canary-7f3a" * size

    @app.task(name="publish")
    async def publish(job: Job[Any], uid: str) -> Any:
        async with await psycopg.AsyncConnection.connect(shop.url) as connection:
            await app.bind(connection).complete(job, {"published": uid})

    async with app:
        async with await psycopg.AsyncConnection.connect(shop.url) as connection:
            handle = await app.bind(connection).enqueue(publish, text)
        await app.drain()
        assert await handle.result() == {"published": text}
        info = await app.get(handle.id)
        assert (info.state, info.args) == (JobState.COMPLETED, {"uid": text})
    stored = shop.run("SELECT string_agg(j::text, ' ') FROM headrace.jobs j")
    assert "canary" not in stored[0]
    assert b"canary".hex() not in stored[0]


@pytest.mark.parametrize("read_unsealed", [False, True])
async def test_from_sql(shop: Shop, read_unsealed: bool) -> None:
    app, ran = sealing_app(shop, read_unsealed=read_unsealed), []

    @app.task(name="publish")
    async def publish(uid: str) -> None:
        ran.append(uid)

    [job_id] = shop.run("""SELECT id FROM headrace.enqueue_v1('{"task": "publish", "args": {"uid": "a"}}')""")
    async with app:
        await app.drain()
        info = await app.get(job_id)
    if read_unsealed:
        assert (ran, info.state) == (["a"], JobState.COMPLETED)
    else:
        assert (ran, info.state, info.failures[0].type) == ([], JobState.FAILED, "SealError")
