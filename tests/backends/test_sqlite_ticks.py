"""Schedules and ticks in a SQLite file, where its own ways of storing them could show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest_asyncio
from msgspec.structs import replace

from headrace.backends.sqlite import SqliteBackend
from headrace.backends.sqlite.transaction import INLINE
from headrace.seam.records import SweepClause, SweepTarget
from headrace.seam.ticks import Drop, Look, NewTick, Overlap, Plan, Save, ScheduleSelector, TickOutcome
from headrace.testing.conformance.base import T0, job_id
from headrace.testing.conformance.ticks import fires, moved, schedule, uid
from headrace.types import JobState

FIRED, SKIPPED = TickOutcome.FIRED, TickOutcome.SKIPPED


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "jobs.db", durability="normal")
    await backend.open()
    yield backend
    await backend.close()


async def test_a_slot_that_one_batch_brings_twice_is_stored_once(store: SqliteBackend) -> None:
    ticks = store.ticks
    await ticks.save([Save(schedule(1), 0)], T0)
    plan = Plan("s000001", uid(1), None, [fires(T0, 1), fires(T0, 2)])
    assert await ticks.plan([plan, replace(plan, ticks=[fires(T0, 3), fires(T0 + 1, 1)])], T0) == [
        [FIRED, None],
        [None, FIRED],
    ]
    assert [tick.job for tick in await ticks.history(uid(1))] == [job_id(1), job_id(1)]
    assert [job is not None for job in await store.fetch([job_id(n) for n in (1, 2, 3)])] == [True, False, False]
    [known] = await ticks.find(ScheduleSelector())
    assert (known.runs, known.version) == (2, 3)


async def test_of_plans_in_one_batch_each_finds_what_the_one_before_did(store: SqliteBackend) -> None:
    """A job that is cancelled lets go of its key for the next; one that was just stored is alive."""
    ticks = store.ticks
    await ticks.save([Save(schedule(1), 0)], T0)
    [one] = await ticks.find(ScheduleSelector())
    plans = [
        moved(replace(one, version=1 + n), fires(T0 + n, n, overlap, key="k"), slot=T0)
        for n, overlap in enumerate((Overlap.CANCEL, Overlap.CANCEL, Overlap.SKIP, Overlap.CANCEL))
    ]
    assert await ticks.plan(plans, T0) == [[FIRED], [FIRED], [SKIPPED], [FIRED]]
    jobs = await store.fetch([job_id(n) for n in range(4)])
    assert [job and job.state for job in jobs] == [JobState.CANCELLED, JobState.CANCELLED, None, JobState.AVAILABLE]


async def test_definitions_of_any_size_are_stored_as_they_are(store: SqliteBackend) -> None:
    ticks = store.ticks
    sizes = (0, 1, INLINE, INLINE + 1, 1_000_000)
    for version, size in enumerate((*sizes, *reversed(sizes))):
        definition = bytes([version]) * size
        assert await ticks.save([Save(schedule(1, definition=definition), version)], T0) == [True]
        for found in (await ticks.find(ScheduleSelector()), (await ticks.due(Look(), T0)).schedules):
            assert [known.definition for known in found] == [definition]
        [count] = await store._read(lambda session, _: session.one("SELECT count(*) FROM cells"), T0)
        assert count == (size > INLINE)
    assert await ticks.save([Drop("s000001", 2 * len(sizes))], T0) == [True]


async def test_of_several_bounds_the_one_that_condemns_most_decides(store: SqliteBackend) -> None:
    ticks = store.ticks
    await ticks.save([Save(schedule(1), 0)], T0)
    for n in range(10):
        await ticks.plan([Plan("s000001", uid(1), None, [NewTick(T0 - n, T0)])], T0 + n)
    [(count, size)] = [(p.count, p.bytes) for p in (await store.stats(T0)).kept if p.target == SweepTarget.TICKS]
    each = size // count
    assert (count, each * count) == (10, size)
    bytes_ = (None, 0, 1, each, each + 1, 5 * each - 1, size - 1, size, size + 1)
    for older_than, max_count, max_bytes, limit in product((None, 0, 4, 99), (None, 0, 7, 11), bytes_, (3, 9, 10, 99)):
        aged = 0 if older_than is None else max(0, 10 - older_than)
        over = 0 if max_count is None else max(0, 10 - max_count)
        heavy = 0 if max_bytes is None else sum(size - gone * each > max_bytes for gone in range(10))
        doomed = max(aged, over, heavy)
        clause = SweepClause(
            target=SweepTarget.TICKS,
            older_than=older_than,
            max_count=max_count,
            max_bytes=max_bytes,
            limit=limit,
            dry_run=True,
        )
        swept = await store.sweep(clause, T0 + 9)
        removed = min(doomed, limit)
        assert (swept.removed, swept.kept, swept.more) == (removed, 10 - removed, doomed > limit), clause
        assert swept.bytes == removed * each
    swept = await store.sweep(SweepClause(target=SweepTarget.TICKS, older_than=4, max_count=7), T0 + 9)
    assert (swept.removed, swept.kept) == (6, 4)
    assert [tick.slot for tick in await ticks.history(uid(1))] == [T0 - n for n in (6, 7, 8, 9)]
