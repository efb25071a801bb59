"""Batches that lock the same rows in opposite orders, each halfway through: what a deadlock is made of.

The first one takes job 1 and is held up at job 2 by a third session; the second takes job 3 and then wants job 1; the
third session lets go, and the first wants job 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from psycopg.errors import DeadlockDetected, SerializationFailure

from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Delete,
    Hold,
    Move,
    Pause,
    Reap,
    Reprioritise,
    Requeue,
    Reschedule,
    Row,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
    Watch,
)
from headrace.seam.ticks import Drop, NewTick, Overlap, Plan, Save, Schedule, TickNote
from headrace.types import JobState
from tests.backends.interleaving.scenes import HOUR, NOW, QUEUES, SECOND, START, WORKER, job_id
from tests.backends.interleaving.session import Paired, within
from tests.backends.interleaving.stage import Stage
from tests.backends.interleaving.ticking import ticks_of

Send = Callable[[Backend, Sequence[int]], Awaitable[Any]]


class Batch(NamedTuple):
    """A statement on many jobs, in the order given as far as that is its own."""

    name: str
    send: Send
    steady: bool = True
    """Whether it goes on all the time, rather than when somebody steps in."""


KEYS = {1: "k3", 2: "k2", 3: "k1"}
"""The order of the keys is not that of the jobs."""


def _row(number: int, **changes: Any) -> Row:
    return Row(job_id(number), "q", "t", {}, key=KEYS[number % 10], **changes)


async def _running(store: Backend) -> None:
    for number in KEYS:
        await store.insert([_row(number, reply_to="in")], START)
        await store.claim(Claim(WORKER, ("q",), 1, number * SECOND), START)


async def _waiting(store: Backend) -> None:
    await store.insert([_row(number, reply_to="in", delay=number) for number in KEYS], START)


async def _expired(store: Backend) -> None:
    await store.insert([_row(number, reply_to="in", delay=number, expires=SECOND) for number in KEYS], START)


async def _ended(store: Backend) -> None:
    await _running(store)
    for number in KEYS:
        await store.finish([Settlement(job_id(number), START, WORKER, JobState.FAILED)], START + number)


def _finish(state: JobState, **fields: Any) -> Send:
    async def send(store: Backend, numbers: Sequence[int]) -> Any:
        return await store.finish(
            [Settlement(job_id(number), START, WORKER, state, **fields) for number in numbers], NOW
        )

    return send


def _alter(change: Change) -> Send:
    async def send(store: Backend, numbers: Sequence[int]) -> Any:
        return await store.alter(Selector(ids=[job_id(number) for number in numbers]), change, NOW)

    return send


async def _renew(store: Backend, numbers: Sequence[int]) -> Any:
    return await store.renew(Beat(WORKER, WORKER, QUEUES, HOUR, [(job_id(number), START) for number in numbers]), NOW)


async def _reap(store: Backend, numbers: Sequence[int]) -> Any:
    return await store.reap(Reap(max_lost=0), NOW)


async def _claim(store: Backend, numbers: Sequence[int]) -> Any:
    return await store.claim(Claim("w2", QUEUES, 10, HOUR), NOW)


async def _sweep(store: Backend, numbers: Sequence[int]) -> Any:
    return await store.sweep(SweepClause(target=SweepTarget.FAILED, older_than=0), NOW)


async def _insert(store: Backend, numbers: Sequence[int]) -> Any:
    return await store.insert([_row(number + 10, reply_to="in:2") for number in numbers], NOW)


async def _insert_elsewhere(store: Backend, numbers: Sequence[int]) -> Any:
    return await store.insert([Row(job_id(n + 20), "other", "t", {}, key=KEYS[n]) for n in numbers], NOW)


_INSERT = Batch("insert", _insert)
_ELSEWHERE = Batch("insert elsewhere", _insert_elsewhere)
_REAP = Batch("reap", _reap)
_CANCEL = Batch("cancel", _alter(Cancel()), steady=False)
_DELETE = Batch("delete", _alter(Delete()), steady=False)
_ON_RUNNING = (
    _INSERT,
    _ELSEWHERE,
    Batch("complete", _finish(JobState.COMPLETED, result_ttl=HOUR)),
    Batch("complete and forget", _finish(JobState.COMPLETED, keep=False)),
    Batch("retry", _finish(JobState.AVAILABLE, cells={"vm_state": b"2"})),
    Batch("fail", _finish(JobState.FAILED)),
    Batch("finish elsewhere", _finish(JobState.AVAILABLE, queue="other")),
    Batch("renew", _renew),
    _REAP,
    _CANCEL,
    Batch("watch", _alter(Watch("in:3"))),
)
_ON_WAITING = (
    _INSERT,
    _ELSEWHERE,
    Batch("claim", _claim),
    _REAP,
    _CANCEL,
    Batch("pause", _alter(Pause()), steady=False),
    Batch("move", _alter(Move("other")), steady=False),
    Batch("reprioritise", _alter(Reprioritise(7)), steady=False),
    Batch("reschedule", _alter(Reschedule(7)), steady=False),
    _DELETE,
)
_ON_ENDED = (
    _INSERT,
    Batch("sweep", _sweep),
    Batch("requeue", _alter(Requeue()), steady=False),
    Batch("hold", _alter(Hold(HOUR)), steady=False),
    _DELETE,
)


class Ground(NamedTuple):
    """Three jobs alike, and what may happen to them."""

    name: str
    build: Callable[[Backend], Awaitable[None]]
    batches: tuple[Batch, ...]


GROUNDS = (
    Ground("running, their leases over", _running, _ON_RUNNING),
    Ground("waiting", _waiting, _ON_WAITING),
    Ground("expired", _expired, _ON_WAITING),
    Ground("failed", _ended, _ON_ENDED),
)


def _schedule(number: int, **changes: Any) -> Schedule:
    """The order of the names is not that of the jobs."""
    return Schedule(name=f"s{9 - number}", uid=job_id(number), queue="q", definition=b"d", **changes)


async def _scheduled(store: Backend) -> None:
    await _running(store)
    changes = [Save(_schedule(number, last_job=job_id(number)), 0) for number in KEYS]
    await ticks_of(store).save(changes, START)
    await _plan(Overlap.ALLOW, START)(store, list(KEYS))


def _plan(overlap: Overlap, slot: int) -> Send:
    """Out of turn, so that every one finds something to do."""

    async def send(store: Backend, numbers: Sequence[int]) -> Any:
        rows = {number: Row(job_id(number + 30), "other", "t", {}) for number in numbers}
        ticks = {number: NewTick(slot, slot, rows[number], overlap=overlap) for number in numbers}
        plans = [Plan(f"s{9 - number}", job_id(number), None, [ticks[number]]) for number in numbers]
        return await ticks_of(store).plan(plans, NOW)

    return send


async def _save(store: Backend, numbers: Sequence[int]) -> Any:
    return await ticks_of(store).save([Save(_schedule(number), 2) for number in numbers], NOW)


async def _make(store: Backend, numbers: Sequence[int]) -> Any:
    new = [Schedule(name=f"new{9 - number}", uid=job_id(number + 50), queue="q", definition=b"d") for number in numbers]
    return await ticks_of(store).save([Save(one, 0) for one in new], NOW)


async def _drop(store: Backend, numbers: Sequence[int]) -> Any:
    return await ticks_of(store).save([Drop(f"s{9 - number}", 2) for number in numbers], NOW)


async def _note(store: Backend, numbers: Sequence[int]) -> Any:
    return await ticks_of(store).note([TickNote(job_id(number), START, "failed", 1, 1) for number in numbers], NOW)


async def _sweep_ticks(store: Backend, numbers: Sequence[int]) -> Any:
    return await store.sweep(SweepClause(target=SweepTarget.TICKS, max_count=0), NOW)


SCHEDULED = Ground(
    "schedules, their last jobs running",
    _scheduled,
    (
        Batch("plan", _plan(Overlap.ALLOW, NOW)),
        Batch("plan, cancelling", _plan(Overlap.CANCEL, NOW + 1)),
        Batch("save", _save),
        Batch("make", _make),
        Batch("drop", _drop),
        Batch("note", _note),
        Batch("sweep ticks", _sweep_ticks),
        Batch("complete", _finish(JobState.COMPLETED, result_ttl=HOUR)),
        _REAP,
        _CANCEL,
    ),
)


class Gate(NamedTuple):
    """What the third session has in hand."""

    name: str
    close: Send


GATES = (Gate("a job", _alter(Watch("in:4"))), Gate("a key", _insert))
SCHEDULE_GATES = (
    GATES[0],
    Gate("a schedule", _save),
    Gate("a new schedule", _make),
    Gate("a tick", _note),
)


async def cross(stage: Stage, ground: Ground, gate: Gate, first: Batch, second: Batch) -> tuple[bool, list[str]]:
    """Both batches, each halfway through when it needs what the other has: whether the server had to undo one of them,
    and what is wrong in the end. What was undone is repeated, as the core would."""
    await stage.set(ground)
    async with asyncio.TaskGroup() as group:
        await stage.third.say("BEGIN")
        try:
            await gate.close(stage.third.store, [2])
            works = []
            for session, batch, numbers in ((stage.first, first, (1, 2, 3)), (stage.second, second, (3, 1))):
                works.append(group.create_task(_sent(batch, session.store, numbers)))
                await within(stage.watch.until_stuck(session.pid, works[-1]))
        finally:
            await stage.third.say("ROLLBACK")
        undone = [await within(work) for work in works]
    wrong, _ = await stage.look()
    return any(undone), wrong


async def _sent(batch: Batch, store: Paired, numbers: Sequence[int]) -> bool:
    undone = False
    for _ in range(2):
        try:
            await batch.send(store, numbers)
            return undone
        except Unavailable as error:
            if not isinstance(error.__cause__, DeadlockDetected | SerializationFailure):
                raise
            undone = undone or isinstance(error.__cause__, DeadlockDetected)
    await batch.send(store, numbers)
    return undone
