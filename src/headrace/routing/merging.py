"""Answers of several stores become one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from headrace.seam.records import COUNTS, Claimed, KeptStats, Limits, QueueStats, Renewed, Stats, Swept, WorkerStats


def limits(all_of: Sequence[Limits]) -> Limits:
    """What every one of them can take."""
    return Limits(
        max_batch=min(one.max_batch for one in all_of),
        max_cell=min(one.max_cell for one in all_of),
        min_priority=max(one.min_priority for one in all_of),
        max_priority=min(one.max_priority for one in all_of),
        time_precision=max(one.time_precision for one in all_of),
        count_cap=min(one.count_cap for one in all_of),
        trips=max(one.trips for one in all_of),
        durable="; ".join(dict.fromkeys(one.durable for one in all_of)),
    )


def claimed(first: Claimed, second: Claimed, limit: int) -> Claimed:
    """Two claims, one after the other."""
    jobs = [*first.jobs, *second.jobs]
    waits = [one.next_in for one in (first, second) if one.next_in is not None]
    return Claimed(
        jobs=jobs,
        next_in=min(waits, default=None) if len(jobs) < limit else None,
        expired=[*first.expired, *second.expired],
        passed_over=first.passed_over or second.passed_over,
        chosen=first.chosen or second.chosen,
        doubtful=first.doubtful or second.doubtful,
    )


def renewed(answers: Sequence[Renewed]) -> Renewed:
    """A lease is lost if no store knows it; a queue is paused if it is paused in all of them."""
    first = answers[0]
    return Renewed(
        lost=[lease for lease in first.lost if all(lease in one.lost for one in answers)],
        cancels=[job_id for one in answers for job_id in one.cancels],
        paused=[queue for queue in first.paused if all(queue in one.paused for one in answers)],
        busy=[lease for one in answers for lease in one.busy],
        held=[lease for one in answers for lease in one.held],
        overdue=any(one.overdue for one in answers),
        doubtful=any(one.doubtful for one in answers),
    )


def swept(answers: Sequence[Swept]) -> Swept:
    """Together."""
    return Swept(
        sum(one.removed for one in answers),
        sum(one.bytes for one in answers),
        sum(one.kept for one in answers),
        any(one.more for one in answers),
    )


def stats(answers: Sequence[Stats]) -> Stats:
    """Queues and what is kept are added up. A worker beats in every store, and is listed once."""
    queues: dict[str, QueueStats] = {}
    for one in (queue for answer in answers for queue in answer.queues):
        queues[one.queue] = _sum(queues[one.queue], one) if one.queue in queues else one
    kept: dict[str, KeptStats] = {}
    for part in (part for answer in answers for part in answer.kept):
        known = kept.get(part.target, KeptStats(part.target, 0, 0))
        kept[part.target] = KeptStats(part.target, known.count + part.count, known.bytes + part.bytes)
    workers = _listed_once(worker for answer in answers for worker in answer.workers)
    return Stats([queues[name] for name in sorted(queues)], workers, list(kept.values()))


def _listed_once(workers: Iterable[WorkerStats]) -> list[WorkerStats]:
    found: dict[tuple[str, tuple[str, ...], int], WorkerStats] = {}
    for one in workers:
        name = one.worker, one.queues, one.slots
        known = found.get(name)
        if known is None or one.seen_at > known.seen_at:
            started = one.started_at if known is None else min(one.started_at, known.started_at)
            found[name] = replace(one, started_at=started)
    return sorted(found.values(), key=lambda one: (one.started_at, one.worker))


def _sum(a: QueueStats, b: QueueStats) -> QueueStats:
    ages = [one.oldest_due_age for one in (a, b) if one.oldest_due_age is not None]
    paused = a.paused and b.paused
    ends = [one.paused_until for one in (a, b) if one.paused_until is not None]
    return QueueStats(
        a.queue,
        paused,
        **{name: getattr(a, name) + getattr(b, name) for name in COUNTS},
        oldest_due_age=max(ages, default=None),
        paused_until=min(ends) if paused and ends else None,
        next_due_in=min((one.next_due_in for one in (a, b) if one.next_due_in is not None), default=None),
    )
