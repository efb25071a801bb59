"""A shard that is away, or hangs, keeps nobody from the others: whichever it is, and whatever is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from headrace import App
from headrace.api.client import Client
from headrace.core.config import Settings
from headrace.errors import PartlyUnavailable, Unavailable
from headrace.routing import shard
from headrace.routing.sharded import Router
from headrace.seam import records as r
from headrace.seam.protocol import Backend
from headrace.types import JobState
from tests.routing.shaky import Shaky, Way
from tests.routing.test_mover import job_id, row

GRACE = 120.0
"""Seconds in which anything is done, however busy the machine is."""
LEASE = 60_000_000


class Pair:
    """Two shards, one of them in trouble. Jobs of the queue ``far`` belong there, those of ``near`` to the other."""

    def __init__(self, troubled: str, way: Way) -> None:
        self.bad, self.good = Shaky(), Shaky()
        self.way: Way = way
        first, second = (self.bad, self.good) if troubled == "home" else (self.good, self.bad)
        queue = "near" if troubled == "home" else "far"
        shards = cast("dict[str, Backend]", {"main": first, "bulk": second})
        self.store = Router(shards, f"{queue}=bulk, *=main")

    def break_it(self) -> None:
        self.bad.trouble.append(self.way)

    def mend(self) -> None:
        self.bad.trouble.clear()


@pytest.fixture(params=[("home", "away"), ("home", "hangs"), ("other", "away"), ("other", "hangs")], ids="-".join)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    found = Pair(*request.param)
    async with asyncio.timeout(GRACE):
        yield found
    found.mend()
    await found.store.close()


def near(number: int, **options: Any) -> r.Row:
    return replace(row(number, **options), queue="near")


def far(number: int, **options: Any) -> r.Row:
    return replace(row(number, **options), queue="far")


async def until(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(GRACE):
        while not done():
            await asyncio.sleep(0.01)


async def test_every_operation_goes_on_in_the_other(pair: Pair) -> None:
    store = pair.store
    await store.open()
    await store.insert([near(n) for n in range(4)] + [far(n, reply_to="in") for n in range(10, 14)])
    [there] = (await store.claim(r.Claim("w", ("far",), 1, LEASE))).jobs
    pair.break_it()
    with pytest.raises(PartlyUnavailable) as partly:
        await store.insert([near(4), far(14)])
    assert (partly.value.answers[0].status, set(partly.value.unanswered)) == (r.InsertStatus.NEW, {1})
    assert [one.status for one in await store.insert([near(5)])] == [r.InsertStatus.NEW]
    claimed = await store.claim(r.Claim("w", ("near", "far"), 9, LEASE))
    assert ({job.id for job in claimed.jobs}, claimed.doubtful) == ({job_id(n) for n in range(6)}, True)
    leases = [(job.id, job.epoch) for job in (*claimed.jobs, there)]
    renewed = await store.renew(r.Beat("w", "worker", ("near", "far"), LEASE, leases))
    assert (renewed.lost, renewed.doubtful) == ([], True)
    done = [r.Settlement(job.id, job.epoch, "w", JobState.COMPLETED) for job in (claimed.jobs[0], there)]
    assert await store.finish(done[:1]) == [JobState.COMPLETED]
    again = r.Settlement(claimed.jobs[1].id, claimed.jobs[1].epoch, "w", JobState.COMPLETED)
    with pytest.raises(PartlyUnavailable) as partly:
        await store.finish([done[1], again])
    assert (partly.value.answers, set(partly.value.unanswered)) == ([None, JobState.COMPLETED], {0})
    assert (await store.fetch([job_id(0)]))[0] is not None
    with pytest.raises(PartlyUnavailable) as partly:
        await store.fetch([job_id(0), job_id(10)])
    assert (partly.value.answers[0].id, set(partly.value.unanswered)) == (job_id(0), {1})
    assert len(await store.alter(r.Selector(ids=[job_id(1)]), r.Delete())) == 1
    with pytest.raises(Unavailable):
        await store.alter(r.Selector(ids=[job_id(2), job_id(11)]), r.Watch("in"))
    page = await store.scan(r.Selector())
    assert {record.queue for record in page.records} == {"near"}
    with pytest.raises(PartlyUnavailable):
        await store.scan(r.Selector(), page.after)
    assert await store.reap(r.Reap()) == []
    assert [queue.queue for queue in (await store.stats()).queues] == ["near"]
    assert await store.now() > 0
    states = {state.name: state.error for state in await store.states()}
    assert sorted(map(bool, states.values())) == [False, True]
    pair.mend()
    while True:
        with suppress(Unavailable):
            assert await store.finish(done[1:]) == [JobState.COMPLETED]
            break
        await asyncio.sleep(0.02)
    assert {record.queue for record in await everything(store)} == {"near", "far"}


async def everything(store: Backend) -> list[r.Record]:
    found: list[r.Record] = []
    after: str | None = None
    while True:
        page = await store.scan(r.Selector(), after, 3)
        found += page.records
        after = page.after
        if after is None:
            return found


async def test_all_jobs_that_are_there_are_changed(pair: Pair) -> None:
    store = pair.store
    await store.open()
    await store.insert([near(n) for n in range(9)] + [far(n) for n in range(10, 19)])
    pair.break_it()
    first = await store.alter(r.Selector(limit=4), r.Pause())
    assert [one.id for one in first] == [job_id(n) for n in range(4)]
    with pytest.raises(PartlyUnavailable):
        await store.alter(r.Selector(limit=100, above=first[-1].id), r.Pause())
    pair.mend()
    await until(lambda: all(not one.problem for one in store._guarded.values()))
    paused = [record for record in await everything(store) if record.state is JobState.PAUSED]
    assert {record.id for record in paused} == {job_id(n) for n in range(9)}


async def test_a_process_starts_without_it_and_finds_it_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "OPENING", 0.2)
    pair.break_it()
    await pair.store.open()
    assert [one.status for one in await pair.store.insert([near(1)])] == [r.InsertStatus.NEW]
    pair.mend()
    while True:
        with suppress(Unavailable):
            await pair.store.insert([far(2)])
            return
        await asyncio.sleep(0.02)


async def test_nobody_starts_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Router(cast("dict[str, Backend]", {"main": Shaky(trouble=["away"])}), "*=main")
    with pytest.raises(Unavailable, match="gone"):
        await store.open()


async def test_hints_of_one_outlast_the_trouble_of_the_other(pair: Pair) -> None:
    store = pair.store
    await store.open()
    assert store.hints is not None
    async with store.hints.listen(["queue:near", "queue:far"]) as hints:
        pair.break_it()
        with suppress(Unavailable):
            await store.insert([far(1)])
        await store.insert([near(2)])
        assert (await anext(hints)).topic == "queue:near"
        pair.mend()
        while True:
            with suppress(Unavailable):
                await store.insert([far(3)])
                break
            await asyncio.sleep(0.02)
        while (await anext(hints)).topic != "queue:far":
            pass


async def test_a_call_that_takes_long_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PATIENCE", 0.05)

    class Slow(Shaky):
        async def insert(self, rows: Any, at: r.Stamp = None) -> Any:
            await asyncio.sleep(0.5)
            return await self._inner.insert(rows, at)

    store = Router(cast("dict[str, Backend]", {"main": Slow()}), "*=main")
    await store.open()
    assert [one.status for one in await store.insert([row(1)])] == [r.InsertStatus.NEW]
    await store.close()


async def test_workers_and_waiters_go_on(pair: Pair) -> None:
    """A job that runs when its shard goes away ends when it is back; meanwhile others are enqueued, run, are listed,
    and waited for."""
    settings = Settings.load({"worker": {"lease": "5s"}}, env={}, toml={})
    client = Client(cast("Backend", pair.store), settings)
    app = App(client)
    started, go = asyncio.Event(), asyncio.Event()

    @app.task(queue="far")
    async def caught() -> str:
        started.set()
        await go.wait()
        return "late"

    @app.task(queue="near")
    async def quick(n: int) -> int:
        return n

    async with app:
        working = asyncio.create_task(app.work(["near", "far"]))
        late = await caught.enqueue()
        await started.wait()
        waiting = asyncio.create_task(late.result())
        pair.break_it()
        go.set()
        for n in range(5):
            assert await (await quick.enqueue(n)).result() == n
        assert len(await client.list_jobs(r.Selector())) == 5
        pair.mend()
        assert await waiting == "late"
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


async def test_an_app_starts_beside_a_server_that_is_down(tmp_path: Path) -> None:
    app = App(f"main = redis://127.0.0.1:1 | near = sqlite:///{tmp_path}/near.db | near=near, *=main")

    @app.task(queue="near")
    async def double(n: int) -> int:
        return 2 * n

    began = time.monotonic()
    async with app:
        working = asyncio.create_task(app.work(["near"]))
        assert await (await double.enqueue(3)).result() == 6
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
    assert time.monotonic() - began < GRACE
