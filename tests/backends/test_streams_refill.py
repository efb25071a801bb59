"""A window is filled page by page, however long that takes, and its jobs are given out meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis

from headrace.backends.streams import StreamsBackend, StreamsOptions, refill
from headrace.seam.records import Claim, JobId, Leased
from headrace.testing.conformance.base import LEASE, T0, number, row
from tests import valkey
from tests.streams import Stores

SMALL = Stores(StreamsOptions(window=1_000))
PAGE, JOBS = 100, 1_000
PATIENCE = 60.0


@pytest_asyncio.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StreamsBackend]:
    """A store with ten pages of jobs that no window has yet."""
    monkeypatch.setattr(refill, "_PAGE", PAGE)
    backend = SMALL.connect(tmp_path)
    await backend.open()
    try:
        await backend.truth.insert([row(n) for n in range(JOBS)], T0)
        yield backend
    finally:
        await backend.close()


async def take(store: StreamsBackend, limit: int = 10, holder: str = "w1") -> list[Leased]:
    return (await store.claim(Claim(holder, ("q",), limit, LEASE), T0)).jobs


async def waiting(store: StreamsBackend) -> int:
    [state] = await store.windows.look(["q"], at=T0)
    return state.waiting


async def until_full(store: StreamsBackend, jobs: int) -> None:
    """Until the window has so many jobs. Nobody claims meanwhile, so what is under way must do it."""
    async with asyncio.timeout(PATIENCE):
        while await waiting(store) < jobs:
            await asyncio.sleep(0.01)


def before_each_page(
    store: StreamsBackend, monkeypatch: pytest.MonkeyPatch, do: Callable[[int], Awaitable[None]]
) -> None:
    """Do something before each page is read in full, by its number."""
    feed = store.truth.feed
    pages = 0

    async def feed_later(ids: Sequence[JobId]) -> list[Any]:
        nonlocal pages
        pages += 1
        await do(pages)
        return await feed(ids)

    monkeypatch.setattr(store.truth, "feed", feed_later)


async def test_a_refill_may_take_longer_than_a_feeder_has(
    store: StreamsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page takes two seconds of the five that a feeder has."""
    with redis.Redis.from_url(valkey.server().url()) as client:

        async def pass_time(_: int) -> None:
            for token in client.keys("*:f:*"):
                if (left := client.pttl(token) - 2_000) > 0:
                    client.pexpire(token, left)
                else:
                    client.delete(token)

        before_each_page(store, monkeypatch, pass_time)
        assert len(await take(store, 1)) == 1
        await until_full(store, JOBS - 1)


async def test_jobs_are_given_out_while_the_rest_is_on_its_way(
    store: StreamsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def wait(page: int) -> None:
        if page > 1:
            await go_on.wait()

    before_each_page(store, monkeypatch, wait)
    async with asyncio.timeout(PATIENCE):
        jobs = await take(store, PAGE)
    assert [number(job) for job in jobs] == [*range(PAGE)]
    go_on.set()
    await until_full(store, JOBS - PAGE)


async def test_another_process_goes_on_where_a_feeder_has_stopped(
    store: StreamsBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closing = asyncio.Event()

    async def wait(page: int) -> None:
        if page == 4:
            await closing.wait()

    before_each_page(store, monkeypatch, wait)
    assert len(await take(store, 1)) == 1
    async with asyncio.timeout(PATIENCE):
        while await waiting(store) < 3 * PAGE - 1:
            await asyncio.sleep(0.01)
    ending = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.set()
    await ending
    other = SMALL.connect(tmp_path)
    await other.open()
    try:
        assert await waiting(other) == 4 * PAGE - 1
        found = [0]
        async with asyncio.timeout(PATIENCE):
            while len(found) < JOBS:
                found += map(number, await take(other, 50, "w2"))
        assert found == [*range(JOBS)]
    finally:
        await other.close()
