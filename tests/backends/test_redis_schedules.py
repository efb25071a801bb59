"""Schedules of several shards act as those of one store: a name is that of one, and none is planned twice or lost on
its way from queue to queue."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from headrace.backends.redis import ClusterBackend
from headrace.backends.redis.cluster.shard import ClusterShard
from headrace.backends.redis.schedule_layout import Alteration
from headrace.seam.records import Claim, Reap, SweepClause, SweepTarget, Swept
from headrace.seam.ticks import Drop, Look, NewTick, Plan, Save, Schedule, ScheduleSelector, TickNote, TickOutcome
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, job_id
from headrace.testing.conformance.ticks import fires, moved, schedule, uid
from tests.valkey_cluster import stores

pytestmark = pytest.mark.asyncio

HERE, THERE = "q", "other"
"""Queues of two shards."""
ALL = ScheduleSelector()
FIRED = TickOutcome.FIRED


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[ClusterBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@pytest_asyncio.fixture
async def stranger(store: ClusterBackend) -> AsyncIterator[ClusterBackend]:
    """Another process: it has seen none of the schedules."""
    backend = store.sibling()
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


def parts(store: ClusterBackend) -> tuple[ClusterShard, ClusterShard]:
    source, target = store.shards.shard_of(HERE), store.shards.shard_of(THERE)
    assert source.number != target.number
    return source, target


async def keep(store: ClusterBackend, *schedules: Schedule) -> list[Schedule]:
    assert await store.ticks.save([Save(one, 0) for one in schedules], T0) == [True] * len(schedules)
    return await store.ticks.find(ALL)


async def depart(store: ClusterBackend, one: Schedule) -> None:
    """The schedule is on its way from HERE to THERE; nobody has carried it."""
    source, target = parts(store)
    gone = Alteration(one.name, one.version, replace(one, queue=THERE), (source.number,), target.number)
    assert await source.ticks.change([gone], T0) == [True]


async def placed(store: ClusterBackend) -> list[str]:
    """The names in each shard, shard by shard."""
    found = await asyncio.gather(*(part.ticks.find(ALL) for part in store.shards.all))
    return [one.name for schedules in found for one in schedules]


# -- from queue to queue


async def test_a_schedule_goes_to_the_shard_of_its_new_queue(store: ClusterBackend, stranger: ClusterBackend) -> None:
    [one] = await keep(store, schedule(1, queue=HERE))
    await store.ticks.plan([moved(one, fires(T0, 1), slot=T0 + SECOND)], T0)
    [one] = await store.ticks.find(ALL)
    assert await store.ticks.save([Save(replace(one, queue=THERE, definition=b"new"), one.version)], T0 + 7) == [True]
    assert await placed(store) == [one.name]
    for backend in (store, stranger):
        [found] = await backend.ticks.find(ALL)
        assert found == replace(one, queue=THERE, definition=b"new", version=3, updated_at=T0 + 7)
    [due] = (await stranger.ticks.due(Look(), T0 + SECOND)).schedules
    assert await stranger.ticks.plan([moved(due, fires(T0 + SECOND, 2, queue=THERE))], T0) == [[FIRED]]
    for backend in (store, stranger):
        assert [tick.slot for tick in await backend.ticks.history(uid(1))] == [T0 + SECOND, T0]
    jobs = (await store.claim(Claim("w1", (HERE, THERE), 10, LEASE), T0 + SECOND)).jobs
    assert [(job.id, job.queue) for job in jobs] == [(job_id(1), HERE), (job_id(2), THERE)]


async def test_slots_that_were_planned_before_it_moved_are_not_planned_again(
    store: ClusterBackend, stranger: ClusterBackend
) -> None:
    [one] = await keep(store, schedule(1, queue=HERE))
    await store.ticks.plan([moved(one, fires(T0, 1), slot=T0)], T0)
    for backend, queue in ((store, THERE), (stranger, "a"), (store, HERE)):
        [one] = await backend.ticks.find(ALL)
        assert await backend.ticks.save([Save(replace(one, queue=queue), one.version)], T0) == [True]
        again = fires(T0, 50, queue=queue)
        new = fires(T0 + one.version, one.version, queue=queue)
        assert await stranger.ticks.plan([Plan(one.name, one.uid, None, [again, new])], T0) == [[None, FIRED]]
        [one] = await backend.ticks.find(ALL)
        assert await store.ticks.plan([moved(one, new, again, slot=T0)], T0) == [[None, None]]
    assert await store.fetch([job_id(50)]) == [None]
    assert len(await store.ticks.history(uid(1))) == 4


async def test_what_was_missed_before_it_moved_can_be_made_up_for(store: ClusterBackend) -> None:
    [one] = await keep(store, schedule(1, queue=HERE))
    await store.ticks.plan([moved(one, NewTick(T0, T0), slot=T0)], T0)
    assert await store.ticks.save([Save(replace(one, queue=THERE), 2)], T0) == [True]
    plan = Plan(one.name, one.uid, None, [fires(T0, 1, queue=THERE)])
    assert await store.ticks.plan([plan, plan], T0) == [[FIRED], [None]]
    assert [tick.outcome for tick in await store.ticks.history(uid(1))] == [FIRED]


async def test_a_plan_made_before_it_moved_does_nothing(store: ClusterBackend, stranger: ClusterBackend) -> None:
    [one] = await keep(store, schedule(1, queue=HERE))
    [late] = (await stranger.ticks.due(Look(), T0)).schedules
    assert await store.ticks.save([Save(replace(one, queue=THERE), 1)], T0) == [True]
    for backend in (store, stranger):
        assert await backend.ticks.plan([moved(late, fires(T0, 1))], T0) == [None]
    assert await store.fetch([job_id(1)]) == [None]


@pytest.mark.parametrize("done", range(4))
@pytest.mark.parametrize("how", ["reap", "find", "save", "plan"])
async def test_the_next_caller_finishes_the_move_of_a_schedule(
    store: ClusterBackend, stranger: ClusterBackend, done: int, how: str
) -> None:
    """Wherever the one who carried it stopped: nothing is lost, and nothing is there twice."""
    [one] = await keep(store, schedule(1, queue=HERE))
    await depart(store, one)
    source, target = parts(store)
    entries: list[bytes] = []
    if done > 0:
        entries = await source.outbox(target.number)
    if done > 1:
        await target.receive(source.number, entries)
    if done > 2:
        await target.receive(source.number, entries)
    assert await source.ticks.plan([moved(one, fires(T0, 1))], T0) == [None]
    if how == "reap":
        await stranger.reap(Reap(), T0)
    elif how == "save":
        assert await stranger.ticks.save([Save(schedule(1, queue="a"), 0)], T0) == [False]
    elif how == "plan":
        plan = Plan(one.name, one.uid, None, [fires(T0, 1, queue=THERE)])
        assert await stranger.ticks.plan([plan], T0) == [[FIRED]]
    [found] = await stranger.ticks.find(ALL)
    version = 3 if how == "plan" else 2
    assert (found.queue, found.version) == (THERE, version)
    assert await placed(store) == [one.name]
    assert await source.outbox(target.number) == []
    assert await source.ticks.whose([one.name]) == ({}, [])
    if entries:
        await target.receive(source.number, entries)
        assert [one.version for one in await store.ticks.find(ALL)] == [version]


async def test_one_that_is_removed_does_not_come_back_with_a_late_carrier(store: ClusterBackend) -> None:
    [one] = await keep(store, schedule(1, queue=HERE))
    await depart(store, one)
    source, target = parts(store)
    late = await source.outbox(target.number)
    [one] = await store.ticks.find(ALL)
    assert await store.ticks.save([Drop(one.name, one.version)], T0) == [True]
    await target.receive(source.number, late)
    assert await placed(store) == []


async def test_those_who_wait_are_told_when_it_has_arrived(store: ClusterBackend) -> None:
    assert store.hints is not None
    [one] = await keep(store, schedule(1, queue=HERE))
    await depart(store, one)
    async with store.hints.listen(["schedules:all"]) as heard:
        await store.reap(Reap(), T0)
        assert (await asyncio.wait_for(anext(heard), 60)).topic == "schedules:all"
    assert [one.queue for one in (await store.ticks.due(Look(), T0)).schedules] == [THERE]


# -- one name, one schedule


async def test_a_name_is_that_of_one_schedule_in_all_shards(store: ClusterBackend, stranger: ClusterBackend) -> None:
    await keep(store, schedule(1, queue=HERE))
    assert await stranger.ticks.save([Save(schedule(1, queue=THERE, uid=uid(2)), 0)], T0) == [False]
    assert await placed(store) == ["s000001"]
    changes: list[Save | Drop] = [
        Drop("s000001", 1),
        Save(schedule(1, queue=THERE), 0),
        Save(schedule(1, queue="a"), 1),
    ]
    assert await stranger.ticks.save(changes, T0) == [True, True, True]
    [found] = await store.ticks.find(ALL)
    assert (found.queue, found.version) == ("a", 2)


@pytest.mark.parametrize("first", [0, 1])
async def test_of_two_that_were_made_at_once_in_two_shards_one_stays(
    store: ClusterBackend, stranger: ClusterBackend, first: int
) -> None:
    """Both looked when there was none. The younger one goes, with the next look at the name."""
    both = [schedule(1, queue=HERE, uid=uid(1 + first)), schedule(1, queue=THERE, uid=uid(2 - first))]
    for one in both:
        part = store.shards.shard_of(one.queue)
        assert await part.ticks.save([Save(one, 0)], T0) == [True]
    [found] = await stranger.ticks.find(ALL)
    assert found.uid == uid(1)
    assert len(await placed(store)) == 2
    due = (await store.ticks.due(Look(), T0)).schedules
    answers = await store.ticks.plan([moved(one, fires(T0, n, queue=one.queue)) for n, one in enumerate(due)], T0)
    assert sorted(answers, key=str) == [None, [FIRED]]
    assert await placed(store) == ["s000001"]


async def test_many_callers_that_make_one_schedule_in_many_shards_end_with_one(
    store: ClusterBackend, stranger: ClusterBackend
) -> None:
    wanted = [schedule(1, queue=f"queue {n}", uid=uid(n)) for n in range(20)]
    backends = itertools.cycle((store, stranger))
    await asyncio.gather(*(next(backends).ticks.save([Save(one, 0)], T0) for one in wanted))
    [found] = await store.ticks.find(ALL)
    await store.ticks.save([Save(found, found.version)], T0)
    assert await placed(store) == [found.name]


# -- all shards at once


async def test_found_and_due_in_the_order_of_all(store: ClusterBackend) -> None:
    wanted = [
        schedule(n, queue=f"queue {n % 13}", plan_priority=n % 2, look_at=T0 + n // 20, bucket=n) for n in range(60)
    ]
    await keep(store, *wanted)
    names = [one.name for one in wanted]
    found: list[str] = []
    while page := await store.ticks.find(ALL, found[-1] if found else None, 7):
        found += [one.name for one in page]
    assert found == names
    in_order = sorted(wanted, key=lambda one: (one.plan_priority, one.look_at, one.name))
    looked = await store.ticks.due(Look(25), T0 + 2)
    assert [one.name for one in looked.schedules] == [one.name for one in in_order[:25]]
    assert looked.next_in is None
    looked = await store.ticks.due(Look(), T0)
    assert [one.name for one in looked.schedules] == [one.name for one in in_order if one.look_at == T0]
    assert looked.next_in == 1
    share = [one.name for one in in_order if one.bucket % 3 == 1]
    assert [one.name for one in (await store.ticks.due(Look(100, 1, 3), T0 + HOUR)).schedules] == share


async def test_ticks_of_all_shards_are_swept_in_the_order_in_which_they_were_planned(store: ClusterBackend) -> None:
    queues = [f"queue {n}" for n in range(10)]
    kept = await keep(store, *(schedule(n, queue=queue) for n, queue in enumerate(queues)))
    for n in range(5):
        for place, one in enumerate(kept):
            plan = Plan(one.name, one.uid, None, [NewTick(T0 + n, T0)])
            assert await store.ticks.plan([plan], T0 + 10 * n + place) == [[TickOutcome.MISSED]]
    old = SweepClause(target=SweepTarget.TICKS, older_than=SECOND, limit=12)
    now = T0 + SECOND + 15
    preview = await store.sweep(replace(old, dry_run=True), now)
    assert (preview.removed, preview.more) == (12, True)
    assert await store.sweep(old, now) == preview
    assert await store.sweep(old, now) == Swept(4, preview.bytes // 3, 34, more=False)
    bounded = SweepClause(target=SweepTarget.TICKS, max_count=9)
    assert (await store.sweep(bounded, now)).removed == 25
    left = [tick.slot - T0 for one in kept for tick in await store.ticks.history(one.uid)]
    assert left == [4] * 9
    assert {place.target: place.count for place in (await store.stats(T0)).kept}["ticks"] == 9


async def test_a_note_finds_its_tick_in_any_shard(store: ClusterBackend, stranger: ClusterBackend) -> None:
    [one] = await keep(store, schedule(1, queue=HERE))
    await store.ticks.plan([moved(one, fires(T0, 1), slot=T0)], T0)
    await stranger.ticks.note([TickNote(one.uid, T0, "failed", 1, 2), TickNote(uid(9), T0, "failed", 1, 2)], T0)
    [one] = await store.ticks.find(ALL)
    assert await stranger.ticks.save([Save(replace(one, queue=THERE), one.version)], T0) == [True]
    [one] = await stranger.ticks.find(ALL)
    await stranger.ticks.plan([moved(one, fires(T0 + 1, 2, queue=THERE))], T0)
    for backend, ran in ((store, 3), (stranger, 4)):
        await backend.ticks.note([TickNote(one.uid, slot, "completed", 1, ran) for slot in (T0, T0 + 1)], T0)
        assert [tick.ran for tick in await store.ticks.history(one.uid)] == [ran, ran]


async def test_jobs_for_the_queue_of_another_shard_arrive_there(store: ClusterBackend) -> None:
    """A run out of turn may have read the schedule before it moved."""
    [one] = await keep(store, schedule(1, queue=HERE))
    plan = Plan(one.name, one.uid, None, [fires(T0, 1, queue=THERE), fires(T0 + 1, 2, queue=HERE)])
    assert await store.ticks.plan([plan], T0) == [[FIRED, FIRED]]
    for queue, number in ((THERE, 1), (HERE, 2)):
        jobs = (await store.claim(Claim("w1", (queue,), 10, LEASE), T0 + 1)).jobs
        assert [job.id for job in jobs] == [job_id(number)]
