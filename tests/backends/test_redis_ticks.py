"""Schedules on a Valkey server: when its memory is full, and among others who plan and listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.backends.redis import RedisBackend
from headrace.errors import StoreFull
from headrace.seam.records import Claim, SweepClause
from headrace.seam.records import SweepTarget as SweepPlace
from headrace.seam.ticks import (
    Drop,
    Look,
    NewTick,
    Overlap,
    Plan,
    Save,
    Schedule,
    ScheduleSelector,
    TickNote,
    TickOutcome,
)
from headrace.testing.conformance.base import HOUR, LEASE, MINUTE, T0, job_id
from headrace.testing.conformance.ticks import fires, moved, schedule, uid
from tests.valkey import server, stores


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


@contextmanager
def full() -> Iterator[None]:
    """The server has no more memory to give."""
    server().call("CONFIG", "SET", "maxmemory", 1)
    try:
        yield
    finally:
        server().call("CONFIG", "SET", "maxmemory", 0)


def contents() -> dict[bytes, bytes]:
    """All that the server has."""
    return {key: server().call("DUMP", key) for key in server().call("KEYS", "*")}


async def fired(store: RedisBackend) -> Schedule:
    """A schedule whose first job waits; the next one would cancel it."""
    await store.ticks.save([Save(schedule(1), 0)], T0)
    plan = Plan("s000001", uid(1), 1, [fires(T0, 1)], T0, T0)
    assert await store.ticks.plan([plan], T0) == [[TickOutcome.FIRED]]
    [one] = await store.ticks.find(ScheduleSelector())
    return one


# -- when memory is full


@pytest.mark.parametrize(
    "change",
    [
        lambda ticks, one: ticks.save([Save(schedule(2), 0)], T0),
        lambda ticks, one: ticks.save([Drop(one.name, one.version), Save(schedule(2), 0)], T0),
        lambda ticks, one: ticks.plan([moved(one, fires(T0 + 1, 2))], T0),
        lambda ticks, one: ticks.plan([moved(one, fires(T0 + 1, 2, Overlap.CANCEL))], T0),
        lambda ticks, one: ticks.plan([Plan(one.name, one.uid, None, [NewTick(T0 - 1, T0)])], T0),
    ],
    ids=["save", "drop and save", "plan", "plan that cancels", "plan out of turn"],
)
async def test_what_needs_memory_is_refused_whole(
    store: RedisBackend, change: Callable[[object, Schedule], Awaitable[object]]
) -> None:
    one = await fired(store)
    before = contents()
    with full():
        with pytest.raises(StoreFull):
            await change(store.ticks, one)
        assert contents() == before
    await change(store.ticks, one)
    assert contents() != before


async def test_what_is_looked_at_noted_and_removed_goes_on(store: RedisBackend) -> None:
    one = await fired(store)
    with full():
        assert len((await store.ticks.due(Look(), T0)).schedules) == 1
        await store.ticks.note([TickNote(one.uid, T0, "completed", 1, 2)], T0)
        assert [tick.state for tick in await store.ticks.history(one.uid)] == ["completed"]
        assert (await store.sweep(SweepClause(target=SweepPlace.TICKS, max_count=0), T0)).removed == 1
        assert await store.ticks.save([Drop(one.name, one.version)], T0) == [True]
        assert await store.ticks.find(ScheduleSelector()) == []


# -- among others


async def test_whoever_listens_hears_of_schedules_that_changed(store: RedisBackend) -> None:
    async with store.hints.listen(["schedules:all"]) as heard:  # type: ignore[union-attr]
        for change in (Save(schedule(1), 0), Save(schedule(1, plan_priority=1), 1), Drop("s000001", 2)):
            assert await store.ticks.save([change], T0) == [True]
            assert (await asyncio.wait_for(anext(heard), 60)).topic == "schedules:all"


async def test_whoever_waits_for_jobs_hears_of_those_that_are_planned(store: RedisBackend) -> None:
    await store.ticks.save([Save(schedule(1), 0)], T0)
    async with store.hints.listen(["queue:q"]) as heard:  # type: ignore[union-attr]
        await store.ticks.plan([Plan("s000001", uid(1), 1, [fires(T0, 1)])], T0)
        assert (await asyncio.wait_for(anext(heard), 60)).topic == "queue:q"


async def test_a_sweep_that_comes_second_takes_no_more_than_there_was_to_take(store: RedisBackend) -> None:
    await store.ticks.save([Save(schedule(1), 0)], T0)
    await store.ticks.plan([Plan("s000001", uid(1), None, [NewTick(T0 + n, T0) for n in range(100)])], T0)
    clause = SweepClause(target=SweepPlace.TICKS, max_count=50)
    several = await asyncio.gather(*(store.sweep(clause, T0) for _ in range(4)))
    assert sum(swept.removed for swept in several) == 50
    assert len(await store.ticks.history(uid(1), None, 200)) == 50


async def test_what_was_missed_and_made_up_for_is_as_old_as_that(store: RedisBackend) -> None:
    await store.ticks.save([Save(schedule(1), 0)], T0)
    for tick, at in ((NewTick(T0, T0), T0), (NewTick(T0 + 1, T0), T0 + 1), (fires(T0, 1), T0 + MINUTE)):
        await store.ticks.plan([Plan("s000001", uid(1), None, [tick])], at)
    assert (await store.sweep(SweepClause(target=SweepPlace.TICKS, older_than=HOUR), T0 + HOUR + 1)).removed == 1
    assert [tick.outcome for tick in await store.ticks.history(uid(1))] == [TickOutcome.FIRED]


async def test_a_plan_of_thousands_of_jobs_is_carried_out_in_pieces(store: RedisBackend) -> None:
    count = 30
    await store.ticks.save([Save(schedule(n), 0) for n in range(count)], T0)
    plans = [
        Plan(f"s{n:06d}", uid(n), 1, [fires(T0 + i, 100 * n + i, tenant="t") for i in range(100)]) for n in range(count)
    ]
    assert await store.ticks.plan(plans, T0) == [[TickOutcome.FIRED] * 100] * count
    claimed = await store.claim(Claim("w1", ("q",), 1, LEASE), T0 + 100)
    assert [job.id for job in claimed.jobs] == [job_id(0)]
    [queue] = (await store.stats(T0)).queues
    assert queue.available == 100 * count - 1
