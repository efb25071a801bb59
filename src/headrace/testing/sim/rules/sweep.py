"""sweep: what its clause condemns goes, oldest end first, and nothing else (I17). Of too many dead letters those of the
tenants that hold most."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from headrace.seam.records import JobId, SweepClause, SweepTarget, Swept
from headrace.testing.sim.ledger import Ledger
from headrace.testing.sim.life import Life
from headrace.testing.sim.rules.ticks import on_sweep_ticks
from headrace.types import JobState


def on_sweep(book: Ledger, clause: SweepClause, swept: Swept, gone: Sequence[JobId], now: int) -> None:
    """A sweep was answered; ``gone`` is what the observer missed afterwards."""
    if clause.target is SweepTarget.TICKS:
        on_sweep_ticks(book, clause, swept, now)
        return
    if clause.target is SweepTarget.TENANTS:
        for job_id in gone:
            book.blame("I17", job_id, "a sweep of tenants removed it")
        return
    if clause.target is SweepTarget.KEYS:
        _on_sweep_keys(book, clause, swept, gone, now)
        return
    if (
        clause.target is SweepTarget.FAILED
        and clause.max_count is not None
        and len(book.places[JobState.FAILED]) > clause.max_count
    ):
        _on_sweep_dead(book, clause, swept, gone, now)
        return
    results = clause.target is SweepTarget.RESULTS
    doomed = _stale_results(book, now) if results else _condemned(book, clause, now)
    ids = {life.id for life in doomed[: clause.limit]}
    free = {life.id for life in _tied(book, clause, doomed)}
    for job_id in gone:
        life = book.jobs.get(job_id)
        if results or clause.dry_run or job_id not in ids | free:
            state = "unknown" if life is None else f"{life.state}, ended at {life.finished_at}"
            book.blame("I17", job_id, f"a sweep of {clause.target} removed it, which it may not: it is {state}")
        if life is not None:
            book.sweep_away(life, now)
    if clause.max_bytes is not None:
        return
    if not (results or clause.dry_run):
        left = sorted(ids.difference(gone) - free) or sorted(ids.difference(gone))[: len(ids) - len(gone)]
        for job_id in left:
            book.blame("I17", job_id, f"a sweep of {clause.target} left it, which its clause condemns")
    if (swept.removed, swept.more) != (len(ids), len(doomed) > clause.limit):
        message = f"a sweep of {clause.target} reported {swept.removed}, more: {swept.more}; should be {len(ids)}"
        book.blame("I17", None, message)
    if swept.removed:
        book.reach("dry run" if clause.dry_run else f"swept {clause.target}")
    if results and not clause.dry_run:
        for life in doomed[: clause.limit]:
            life.result = None


def _on_sweep_dead(book: Ledger, clause: SweepClause, swept: Swept, gone: Sequence[JobId], now: int) -> None:
    """A bound of count: what goes is the oldest of those that hold most, which are left with as much as each other."""
    place, most = book.places[JobState.FAILED], clause.max_count or 0
    dead: dict[str, list[Life]] = {}
    for life in place.values():
        dead.setdefault(life.row.tenant, []).append(life)
    excess = len(place) - most
    right = min(excess, clause.limit)
    if (swept.removed, swept.more, len(gone)) != (right, excess > clause.limit, 0 if clause.dry_run else right):
        message = f"a sweep of failed reported {swept.removed}, more: {swept.more}; should be {right} of {excess}"
        book.blame("I17", None, message)
    left = {tenant: [life for life in lives if life.id not in gone] for tenant, lives in dead.items()}
    heaviest = max(map(len, left.values()))
    for tenant, lives in dead.items():
        going = [life for life in lives if life.id in gone]
        if going and len(left[tenant]) < heaviest - 1:
            message = f"a sweep left {tenant!r} {len(left[tenant])} dead letters, and somebody else {heaviest}"
            book.blame("I17", going[0].id, message)
        if going and left[tenant] and max(map(_ended, going)) > min(map(_ended, left[tenant])):
            book.blame("I17", left[tenant][0].id, f"a sweep left it, and removed a younger dead letter of {tenant!r}")
    for job_id in gone:
        if job_id not in place:
            book.blame("I17", job_id, "a sweep of failed removed it, which it may not")
        elif job_id in book.jobs:
            book.sweep_away(book.jobs[job_id], now)
    book.reach("dry run" if clause.dry_run else "swept failed")
    if len(dead) > 1:
        book.reach("dead letters were shared")


def _on_sweep_keys(book: Ledger, clause: SweepClause, swept: Swept, gone: Sequence[JobId], now: int) -> None:
    """What is free is free, on the books of the store or not: only what is removed too early is seen, by inserts."""
    for job_id in gone:
        book.blame("I17", job_id, "a sweep of keys removed it")
    free = sum(until <= now for _, until in book.outlived.values())
    if swept.removed > free:
        book.blame("I17", None, f"a sweep removed {swept.removed} keys, of which only {free} are free")
    if swept.removed and not clause.dry_run:
        book.reach("swept keys")


def _condemned(book: Ledger, clause: SweepClause, now: int) -> list[Life]:
    place = book.places[JobState(clause.target.value)]
    excess = 0 if clause.max_count is None else len(place) - clause.max_count
    return [
        life
        for rank, life in enumerate(place.values())
        if _ended(life) <= now - clause.spare
        and (rank < excess or (clause.older_than is not None and _old(life, clause.older_than, now)))
    ]


def _tied(book: Ledger, clause: SweepClause, doomed: list[Life]) -> list[Life]:
    """Jobs that ended at the very instant at which a count or the limit cuts: any of them may go first."""
    if clause.target is SweepTarget.RESULTS:
        return []
    place = list(book.places[JobState(clause.target.value)].values())
    excess = 0 if clause.max_count is None else len(place) - clause.max_count
    cuts = {life.finished_at for life in (*place[:excess][-1:], *doomed[: clause.limit][-1:])}
    last = doomed[: clause.limit][-1:]
    return [life for life in place if life.finished_at in cuts and last and _ended(life) <= _ended(last[0])]


def _ended(life: Life) -> int:
    assert life.finished_at is not None
    return life.finished_at


def _old(life: Life, age: int, now: int) -> bool:
    return life.finished_at is not None and life.finished_at <= now - age and not life.held(now)


def _stale_results(book: Ledger, now: int) -> list[Life]:
    done = book.places[JobState.COMPLETED].values()
    past = [life for life in done if life.result is not None and life.held_until <= now]
    return nsmallest(len(past), past, key=lambda life: (life.held_until, life.id))
