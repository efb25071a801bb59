"""The memory store's indexes are as large as what is stored, whatever was stored before."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.backends.memory.agenda import Agenda
from headrace.backends.memory.lane import Lane
from headrace.seam.policy import QueuePause
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Delete,
    Hold,
    JobId,
    Move,
    Pause,
    Reap,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
    Watch,
)
from headrace.types import JobState

JOBS = 50_000
QUEUES = [f"queue {number}" for number in range(1_000)]
IDS = [number.to_bytes(16, "big") for number in range(JOBS)]
NOW = 1_000_000
FAR = 10**15
SMALL = 20


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(now=lambda: NOW)


def items(backend: MemoryBackend) -> int:
    """How many things the store holds, in all that it consists of."""
    return sum(_items(value) for value in vars(backend.store).values())


def _items(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_items, value.values()))
    if isinstance(value, Lane):
        return _items(value.due) + _items(value.delayed)
    if isinstance(value, Agenda):
        return len(value.positions) + len(value._heap)
    return len(value) if isinstance(value, list | set) else 0


def rows(count: int = JOBS, *, due: bool = False) -> list[Row]:
    return [
        Row(
            IDS[number],
            QUEUES[number % len(QUEUES)],
            "task",
            {},
            key=str(number),
            priority=number % 7,
            run_at=None if due else FAR,
            expires=FAR + number,
            reply_to=f"inbox {number}",
        )
        for number in range(count)
    ]


def batches(ids: list[JobId]) -> Iterator[list[JobId]]:
    for start in range(0, len(ids), 1_000):
        yield ids[start : start + 1_000]


async def finish_all(backend: MemoryBackend, *, keep: bool = True) -> list[JobId]:
    """Insert, claim and complete them all, with results held for long."""
    await backend.insert(rows(due=True))
    done: list[JobId] = []
    for queue in QUEUES:
        claimed = await backend.claim(Claim("holder", (queue,), 1_000, FAR))
        batch = [
            Settlement(job.id, job.epoch, "holder", JobState.COMPLETED, result=b"{}", result_ttl=FAR, keep=keep)
            for job in claimed.jobs
        ]
        await backend.finish(batch)
        done += [job.id for job in claimed.jobs]
    assert len(done) == JOBS
    return done


async def test_deleted_jobs_leave_nothing_behind(backend: MemoryBackend) -> None:
    await backend.insert(rows())
    for ids in batches(IDS):
        await backend.alter(Selector(ids=ids), Delete())
    assert items(backend) < SMALL


async def test_cancelled_and_swept_jobs_leave_nothing_behind(backend: MemoryBackend) -> None:
    await backend.insert(rows())
    for ids in batches(IDS):
        await backend.alter(Selector(ids=ids), Cancel())
    while (await backend.sweep(SweepClause(target=SweepTarget.CANCELLED, max_count=0))).more:
        pass
    assert items(backend) < SMALL


@pytest.mark.parametrize("way", ["delete", "sweep", "keep nothing"])
async def test_completed_jobs_leave_nothing_behind(backend: MemoryBackend, way: str) -> None:
    done = await finish_all(backend, keep=way != "keep nothing")
    if way == "delete":
        for ids in batches(done):
            await backend.alter(Selector(ids=ids), Delete())
    elif way == "sweep":
        for place in (SweepTarget.COMPLETED, SweepTarget.KEYS):  # keys that are still held outlive the records
            while (await backend.sweep(SweepClause(target=place, max_count=0))).more:
                pass
    assert items(backend) < SMALL


async def test_half_of_the_jobs_leave_half_of_it_behind(backend: MemoryBackend) -> None:
    await backend.insert(rows())
    full = items(backend)
    for ids in batches(IDS[::2]):
        await backend.alter(Selector(ids=ids), Delete())
    # Up to as many places again as there are jobs may wait to be cleared away.
    assert items(backend) < 0.75 * full
    for ids in batches(IDS[1::4]):
        await backend.alter(Selector(ids=ids), Delete())
    assert items(backend) < 0.4 * full


async def test_looking_at_queues_that_do_not_exist_leaves_nothing_behind(backend: MemoryBackend) -> None:
    await backend.claim(Claim("holder", tuple(QUEUES), 10, FAR))
    for queue in QUEUES:
        await backend.policies.pause(QueuePause(queue))
        await backend.policies.pause(QueuePause(queue, paused=False))
        async with backend.listen([f"queue:{queue}"]):
            pass
    await backend.renew(Beat("holder", "worker", tuple(QUEUES), FAR))
    await backend.renew(Beat("holder", "worker", tuple(QUEUES), FAR, leaving=True))
    await backend.stats()
    assert items(backend) < SMALL


async def test_a_job_that_is_changed_again_and_again_takes_one_place(backend: MemoryBackend) -> None:
    await backend.insert(rows(4))
    named = Selector(ids=IDS[:4])
    changes: list[Change] = [Pause(), Resume(), Watch("inbox"), Reprioritise(3), Reschedule(9), Cancel(), Requeue()]
    for number in range(1_000):
        await backend.alter(named, Move(QUEUES[number]))
        for change in changes:
            assert all(answer.changed for answer in await backend.alter(named, change))
    assert items(backend) < 4 * SMALL


async def test_a_result_that_is_held_again_and_again_takes_one_place(backend: MemoryBackend) -> None:
    await backend.insert([Row(b"1" * 16, "q", "task", {})])
    [job] = (await backend.claim(Claim("holder", ("q",), 1, FAR))).jobs
    settlement = Settlement(job.id, job.epoch, "holder", JobState.COMPLETED, result=b"{}", result_ttl=FAR)
    await backend.finish([settlement])
    for number in range(1_000):
        [held] = await backend.alter(Selector(ids=[job.id]), Hold(FAR + number))
        assert held.changed
    assert items(backend) < SMALL


async def test_a_job_that_is_lost_again_and_again_takes_one_place(backend: MemoryBackend) -> None:
    await backend.insert([Row(b"1" * 16, "q", "task", {}, expires=FAR)])
    for number in range(1_000):
        assert len((await backend.claim(Claim(f"holder {number}", ("q",), 1, 0))).jobs) == 1
        assert len(await backend.reap(Reap(max_lost=FAR))) == 1
    assert items(backend) < SMALL


# -- the agenda by itself


@pytest.mark.parametrize("seed", range(20))
def test_an_agenda_is_a_sorted_list(seed: int) -> None:
    rng = random.Random(seed)
    agenda, model = Agenda(), dict[JobId, int]()

    def come(now: int) -> list[JobId]:
        return sorted((job_id for job_id, at in model.items() if at <= now), key=lambda job_id: (model[job_id], job_id))

    for _ in range(2_000):
        job_id, now = rng.randbytes(1), rng.randrange(100)
        match rng.choice(["put", "put", "drop", "drop", "peek", "pop", "take", "take all"]):
            case "put":
                agenda.put(job_id, now)
                model[job_id] = now
            case "drop":
                agenda.drop(job_id)
                model.pop(job_id, None)
            case "peek":
                limit = rng.randrange(5)
                assert agenda.peek(now, limit) == come(now)[:limit]
            case "pop":
                first = next(iter(come(100)), None)
                assert agenda.head() == (None if first is None else (model[first], first))
                assert agenda.pop() == first
                model.pop(first or b"", None)
            case "take":
                expected = next(iter(come(now)), None)
                assert next(agenda.take(now), None) == expected
                model.pop(expected or b"", None)
            case "take all" if rng.random() < 0.05:
                expected_ids = come(now)
                assert list(agenda.take(now)) == expected_ids
                model = {job_id: at for job_id, at in model.items() if at > now}
        assert agenda.positions == model
        assert agenda.first() == min(model.values(), default=None)
        assert agenda.count_after(50) == sum(at > 50 for at in model.values())
        assert len(agenda._heap) <= 2 * len(model) + 1
