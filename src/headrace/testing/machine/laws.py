"""What must hold whatever the model says: read from the store's own records before and after a step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

from headrace.seam.records import Claim, JobId, Reaped, Record, Stats
from headrace.testing.machine.world import World
from headrace.types import JobState

Books = dict[JobId, Record]

_FINAL = attrgetter(
    "state", "epoch", "attempt", "lost", "finished_at", "reason", "error", "cells", "queue", "key", "priority", "run_at"
)
_LIVE = (JobState.AVAILABLE, JobState.RUNNING, JobState.PAUSED)


def due(world: World) -> list[Record]:
    """The due jobs in claim order, expired ones and those of paused queues included."""
    found = [record for record in world.in_state(JobState.AVAILABLE) if record.run_at <= world.now]
    return sorted(found, key=lambda record: (record.priority, record.run_at, record.id))


def expired(record: Record, now: int) -> bool:
    """Whether the job is too late to start."""
    return record.expires_at is not None and record.expires_at <= now


def check_claim(
    world: World, req: Claim, taken: Sequence[JobId], cancelled: Sequence[JobId], *, passed_over: bool
) -> None:
    """A claim takes the first claimable jobs in order, and cancels the expired ones that it meets before it is full.
    Where tenants take turns, see :mod:`headrace.testing.referee`."""
    if world.governed & set(req.queues):
        return
    paused = {queue.queue for queue in world.stats.queues if queue.paused}
    jobs: list[JobId] = []
    met: list[JobId] = []
    left_out: list[JobId] = []
    for record in due(world):
        if len(jobs) == req.limit:
            break
        if record.queue in req.queues and record.queue not in paused and world.has_turn(record):
            suspect = req.lost_below is not None and record.lost >= req.lost_below
            (met if expired(record, world.now) else left_out if suspect else jobs).append(record.id)
    assert passed_over == bool(left_out), f"passed_over is {passed_over}, of {left_out}"
    assert list(taken) == jobs, "a claim must take the first claimable jobs by (priority, run_at, id)"
    assert sorted(cancelled) == sorted(met), "a claim must cancel the expired jobs that it meets, and no other"


def check_claim_by_bands(world: World, req: Claim, taken: Sequence[JobId]) -> None:
    """A claim of a store that orders by bands takes claimable jobs, as many as it can, and none before one of a better
    priority, if priorities are close to 0 and so have bands of their own."""
    if world.governed & set(req.queues):
        return
    paused = {queue.queue for queue in world.stats.queues if queue.paused}
    free = {
        record.id: record
        for record in due(world)
        if record.queue in req.queues and record.queue not in paused and world.has_turn(record)
        if not expired(record, world.now) and (req.lost_below is None or record.lost < req.lost_below)
    }
    assert set(taken) <= free.keys(), "a claim must take claimable jobs"
    assert len(set(taken)) == len(taken) == min(req.limit, len(free)), "a claim must take all that it can"


def check_reap(world: World, reaped: Sequence[Reaped]) -> None:
    """A reap touches what has expired, oldest lease first; a cancelled job lost nothing."""
    assert len({answer.id for answer in reaped}) == len(reaped), f"a job that was reaped twice: {reaped!r}"
    ends: list[int] = []
    for answer in reaped:
        record = world.books[answer.id]
        if record.state is JobState.AVAILABLE:
            assert expired(record, world.now), "a reap cancelled a job that has not expired"
            continue
        assert record.lease_until is not None, "a reap took back a job that was not running"
        assert record.lease_until <= world.now, "a reap took back a lease that was good"
        assert answer.lost <= record.lost + (answer.state is not JobState.CANCELLED), (
            "lost rises by one, and for a loss"
        )
        ends.append(record.lease_until)
    assert ends == sorted(ends), "a reap takes the oldest leases first"


def check_groups(books: Books, called: set[JobId], turns: Mapping[str, int]) -> None:
    """Running jobs of a group are called, and no job waits while one more may be called. No more are called than the
    policy says, unless more ran when it was changed."""
    having: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in books.values():
        if record.group is not None and record.id in called:
            having[record.queue, record.group].append(record)
    for (queue, group), jobs in having.items():
        all_run = all(job.state is JobState.RUNNING for job in jobs)
        assert all_run or len(jobs) <= turns.get(queue, 1), f"group {group!r} of {queue!r} has {len(jobs)} turns"
    for record in books.values():
        if record.group is not None and record.id not in called:
            assert record.state is not JobState.RUNNING, f"runs though it is not called: {record!r}"
            free = len(having[record.queue, record.group]) < turns.get(record.queue, 1)
            assert record.state is not JobState.AVAILABLE or not free, f"waits though it could be called: {record!r}"


def check_step(before: Books, after: Books, now: int, *, requeued: bool, passed_on: Collection[str]) -> None:
    """Ended jobs stay as they are unless they are requeued or inserted again. No key has two live jobs, except those
    that running jobs may have lost to others."""
    for job_id, old in before.items():
        new = after.get(job_id)
        if new is None or not old.state.terminal or (requeued and new.state is JobState.AVAILABLE):
            continue
        born_again = new.epoch == 0 and new.enqueued_at == now
        assert born_again or _FINAL(new) == _FINAL(old), f"an ended job changed: {old!r} became {new!r}"
    live = (r for r in after.values() if r.key is not None and r.state in _LIVE and r.key not in passed_on)
    holders = Counter((r.queue, r.key) for r in live)
    assert not holders or max(holders.values()) == 1, f"a key with two live jobs: {holders.most_common(1)}"


def check_records(books: Books, stats: Stats, now: int, called: set[JobId]) -> None:
    """Each record is sound in itself, and the stats count exactly the records."""
    workers = {worker.worker for worker in stats.workers}
    for record in books.values():
        running = record.state is JobState.RUNNING
        assert (record.lease_until is not None) == running, f"running, and only then, is under a lease: {record!r}"
        assert running or not record.cancel_requested, f"a request to a job that does not run: {record!r}"
        assert not record.worker or (running and record.worker in workers), f"a worker that is not listed: {record!r}"
        assert record.epoch > 0 or not running, f"a lease without an epoch: {record!r}"
        assert (record.finished_at is not None) == record.state.terminal, (
            f"ended, and only then, has an end: {record!r}"
        )
        assert (record.finished_at or 0) <= now, f"an end that is yet to come: {record!r}"
        assert record.state is JobState.COMPLETED or not record.held, f"held without being completed: {record!r}"
        assert record.held or record.result is None, f"a result past its ttl: {record!r}"
    _check_stats(books, stats, now, called)


def _check_stats(books: Books, stats: Stats, now: int, called: set[JobId]) -> None:
    counted = Counter((record.queue, record.state) for record in books.values())
    told: Counter[tuple[str, JobState]] = Counter()
    for queue in stats.queues:
        told[queue.queue, JobState.AVAILABLE] = queue.available
        told[queue.queue, JobState.RUNNING] = queue.running
        told[queue.queue, JobState.PAUSED] = queue.jobs_paused
        told[queue.queue, JobState.COMPLETED] = queue.completed
        told[queue.queue, JobState.CANCELLED] = queue.cancelled
        told[queue.queue, JobState.FAILED] = queue.failed
        waiting = [
            r
            for r in books.values()
            if r.state is JobState.AVAILABLE and r.queue == queue.queue and (r.group is None or r.id in called)
        ]
        ages = [now - record.run_at for record in waiting if record.run_at <= now]
        assert queue.scheduled == len(waiting) - len(ages), f"{queue.scheduled} scheduled, of {len(waiting)} waiting"
        nexts = [record.run_at - now for record in waiting if record.run_at > now]
        assert queue.next_due_in == min(nexts, default=None), f"{queue.next_due_in} is not when the next is due"
        assert queue.oldest_due_age == max(ages, default=None), f"{queue.oldest_due_age} is not the age of the oldest"
    assert +told == counted, f"stats that count {+told}, where there are {counted}"
