"""Schedules on PostgreSQL, beyond the contract: hints, trips, and whatever happens in any order, as in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.backends.postgres import PostgresBackend
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Hint, Pause, Row, Selector, SweepClause, SweepTarget
from headrace.seam.ticks import Drop, Look, NewTick, Overlap, Plan, Save, ScheduleSelector, TickNote, TickOutcome
from headrace.testing.conformance.base import HOUR, LEASE, T0, job_id, row, settle
from headrace.testing.conformance.ticks import schedule, uid
from headrace.types import JobState
from tests.postgres import server, stores

FIRED = TickOutcome.FIRED


class Counting(PostgresBackend):
    """A store that counts its statements."""

    trips = 0

    async def _call(self, name: str, *params: Any) -> list[Any]:
        self.trips += 1
        return await super()._call(name, *params)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Counting]:
    stores.connect(tmp_path)
    backend = Counting(server().url(), schema="headrace")
    await backend.open()
    yield backend
    await backend.close()


def fires(slot: int, number: int, overlap: Overlap = Overlap.ALLOW, **more: Any) -> NewTick:
    return NewTick(slot, slot, row(number, run_at=slot, **more), overlap=overlap)


async def heard(hints: AsyncIterator[Hint], *topics: str) -> None:
    """Return when all of them have come."""
    missing = set(topics)
    async with asyncio.timeout(60):
        while missing:
            missing.discard((await anext(hints)).topic)


async def test_those_who_plan_are_told_of_a_change(store: PostgresBackend) -> None:
    assert store.hints is not None
    async with store.hints.listen(["schedules:all"]) as hints:
        for change in (Save(schedule(1), 0), Save(schedule(1), 1), Drop("s000001", 2)):
            assert await store.ticks.save([change], T0) == [True]
            await heard(hints, "schedules:all")


async def test_a_plan_tells_those_whom_its_jobs_concern(store: PostgresBackend) -> None:
    """Who works on the queue, who waits for a job that it cancels, and who has one that it asks to stop."""
    assert store.hints is not None
    await store.ticks.save([Save(schedule(1), 0), Save(schedule(2), 0)], T0)
    plans = [Plan(f"s{n:06d}", uid(n), 1, [fires(T0, n, reply_to=f"me{n}")], T0, T0) for n in (1, 2)]
    async with store.hints.listen(["queue:q", "inbox:me1", "holder:w"]) as hints:
        assert await store.ticks.plan(plans, T0) == [[FIRED]] * 2
        await heard(hints, "queue:q")
        await store.alter(Selector(ids=[job_id(1)]), Pause(), T0)
        await store.claim(Claim("w", ("q",), 1, LEASE), T0)
        plans = [Plan(f"s{n:06d}", uid(n), 2, [fires(T0 + 1, 10 + n, Overlap.CANCEL)], T0, T0) for n in (1, 2)]
        assert await store.ticks.plan(plans, T0) == [[FIRED]] * 2
        await heard(hints, "queue:q", "inbox:me1", "holder:w")


async def test_every_operation_is_one_trip(store: Counting) -> None:
    names = range(50)
    plans = [Plan(f"s{n:06d}", uid(n), 1, [fires(T0, n, Overlap.CANCEL)], T0, T0) for n in names]
    for operation in (
        store.ticks.save([Save(schedule(n), 0) for n in names], T0),
        store.ticks.due(Look(), T0),
        store.ticks.find(ScheduleSelector()),
        store.ticks.plan([*plans, *plans], T0),
        store.ticks.note([TickNote(uid(n), T0, "completed", 1, 1) for n in names], T0),
        store.ticks.history(uid(1)),
        store.sweep(SweepClause(target=SweepTarget.TICKS, older_than=0), T0),
    ):
        before = store.trips
        await operation
        assert store.trips == before + 1


# -- as in memory


class Twin:
    """Draws operations, and does each on both stores: what they tell must be the same."""

    def __init__(self, seed: int, store: Backend) -> None:
        self._random = Random(seed)
        self._stores = (MemoryBackend(), store)
        self._now = T0
        self._jobs = 0

    async def step(self) -> None:
        self._now += self._random.choice((0, 1, HOUR))
        kinds = (self._saves, self._plans, self._plans, self._plans, self._jobs_move, self._notes, self._sweeps)
        await self._random.choice(kinds)()
        await self._same(lambda store: _all(store, self._now))

    async def _same(self, operation: Any) -> Any:
        one, other = [await operation(store) for store in self._stores]
        assert one == other
        return one

    def _number(self) -> int:
        return self._random.randrange(5)

    async def _saves(self) -> None:
        known = await _known(self._stores[0])
        batch: list[Save | Drop] = []
        for _ in range(self._random.randrange(1, 5)):
            number = self._number()
            given = schedule(
                number,
                uid=uid(number + 10 * self._random.randrange(2)),
                plan_priority=self._random.randrange(-1, 2),
                bucket=number,
                enabled=self._random.random() < 0.8,
                look_at=self._random.choice((None, self._now, self._now + 1)),
                tenant=self._random.choice("ab"),
            )
            version = known[given.name].version if given.name in known else 0
            expect = self._random.choice((0, version, version, version, version + 1))
            batch.append(Save(given, expect) if self._random.random() < 0.8 else Drop(given.name, expect))
        await self._same(lambda store: store.ticks.save(batch, self._now))

    async def _plans(self) -> None:
        known = await _known(self._stores[0])
        batch = []
        for _ in range(self._random.randrange(1, 5)):
            one = known.get(f"s{self._number():06d}", schedule(self._number()))
            version = self._random.choice((None, one.version, one.version, one.version, one.version + 1))
            ticks = [self._tick() for _ in range(self._random.randrange(4))]
            batch.append(Plan(one.name, one.uid, version, ticks, self._now, self._random.choice((None, self._now))))
        await self._same(lambda store: store.ticks.plan(batch, self._now))

    def _tick(self) -> NewTick:
        slot = self._now + self._random.randrange(-2, 4)
        if self._random.random() < 0.2:
            return NewTick(slot, slot, count=3)
        return NewTick(slot, slot + 1, self._row(), overlap=self._random.choice([*Overlap]))

    def _row(self) -> Row:
        if self._jobs == 0 or self._random.random() < 0.9:
            self._jobs += 1
        number = self._jobs if self._random.random() < 0.8 else self._random.randrange(1, self._jobs + 1)
        return row(number, run_at=self._now, key=self._random.choice((None, None, None, "k1", "k2")))

    async def _jobs_move(self) -> None:
        claimed = await self._same(lambda store: _claim(store, self._now))
        batch = [settle(job, self._random.choice((JobState.COMPLETED, JobState.AVAILABLE))) for job in claimed]
        await self._same(lambda store: store.finish(batch[:2], self._now))

    async def _notes(self) -> None:
        slots = [self._now + self._random.randrange(-3, 3) for _ in range(5)]
        batch = [TickNote(uid(self._number()), slot, "completed", 1, number) for number, slot in enumerate(slots)]
        await self._same(lambda store: store.ticks.note(batch, self._now))

    async def _sweeps(self) -> None:
        bounds = self._random.choice(({"older_than": HOUR}, {"older_than": 3 * HOUR}, {"max_count": 10_000}))
        await self._same(lambda store: store.sweep(SweepClause(target=SweepTarget.TICKS, **bounds), self._now))


async def _known(store: Backend) -> dict[str, Any]:
    assert store.ticks is not None
    return {one.name: one for one in await store.ticks.find(ScheduleSelector())}


async def _claim(store: Backend, now: int) -> Any:
    return (await store.claim(Claim("w", ("q",), 3, LEASE), now)).jobs


async def _all(store: Backend, now: int) -> list[Any]:
    assert store.ticks is not None
    found: list[Any] = [await store.ticks.find(ScheduleSelector(tenant="a")), await _known(store)]
    found += [await store.ticks.due(Look(limit, shard, 2), now) for limit in (2, 100) for shard in (0, 1)]
    found += [await store.ticks.history(uid(number)) for number in range(20)]
    page = await store.scan(Selector(), None, 1_000, now)
    return [*found, page.records, [one for one in (await store.stats(now)).kept if one.target == SweepTarget.TICKS]]


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_is_as_in_memory(seed: int, store: PostgresBackend) -> None:
    twin = Twin(seed, store)
    for _ in range(40):
        await twin.step()
