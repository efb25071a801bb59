"""sweep: what has ended or was planned long ago, oldest first, a bounded number."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest

from msgspec.structs import replace

from headrace.backends.memory.entry import Entry
from headrace.backends.memory.store import MemoryStore
from headrace.backends.shares import bound_of, condemn, goes_on
from headrace.seam import records as r
from headrace.types import JobState


def sweep(store: MemoryStore, clause: r.SweepClause, now: int) -> r.Swept:
    """Remove what the clause condemns; for ticks, see ``ticks``."""
    match clause.place:
        case r.Place.RESULTS:
            return _sweep_results(store, clause, now)
        case r.Place.KEYS:
            return _sweep_keys(store, clause, now)
        case r.Place.TENANTS:
            return _sweep_tenants(store, clause, now)
        case r.Place.FAILED:
            return _sweep_dead(store, clause, now)
        case place:
            return _sweep_ended(store, clause, JobState(place.value), now)


def _sweep_ended(store: MemoryStore, clause: r.SweepClause, state: JobState, now: int) -> r.Swept:
    place = store.ended[state]
    doomed: list[Entry] = []
    more = False
    excess = 0 if clause.max_count is None else len(place) - clause.max_count
    over = 0 if clause.max_bytes is None else store.sizes[state] - clause.max_bytes
    freed = 0
    for entry in place.values():
        if (entry.finished_at or 0) > now - clause.spare:
            break
        old = (
            clause.older_than is not None
            and (entry.finished_at or 0) <= now - clause.older_than
            and not (state is JobState.COMPLETED and entry.held_until > now)
        )
        if not (old or len(doomed) < excess or freed < over):
            if clause.older_than is not None and (entry.finished_at or 0) <= now - clause.older_than:
                continue
            break
        if len(doomed) == clause.limit:
            more = True
            break
        doomed.append(entry)
        freed += entry.size
    kept = len(place) - len(doomed)
    if not clause.dry_run:
        for entry in doomed:
            store.sweep_away(entry, now)
    return r.Swept(len(doomed), freed, kept, more)


def _sweep_dead(store: MemoryStore, clause: r.SweepClause, now: int) -> r.Swept:
    """FAILED jobs: what is too old; if there is none, what is too much."""
    place, size = store.ended[JobState.FAILED], store.sizes[JobState.FAILED]
    jobs, bound = len(place), "age"
    swept = _sweep_ended(store, replace(clause, max_count=None, max_bytes=None), JobState.FAILED, now)
    if not swept.removed:
        bound, excess = bound_of(clause, jobs, size)
        dead = store.dead

        def oldest(tenant: str | None) -> Iterator[tuple[Entry, int]]:
            for entry in (place if tenant is None else dead.of[tenant]).values():
                if (entry.finished_at or 0) > now - clause.spare:
                    break
                yield entry, entry.size

        heaviest = dead.heaviest(bound, clause.limit + 1) if bound else []
        condemned = condemn(bound, excess, clause.limit, heaviest, oldest)
        doomed = condemned[: clause.limit]
        swept = r.Swept(len(doomed), sum(each for _, each in doomed), jobs - len(doomed), len(condemned) > clause.limit)
        if not clause.dry_run:
            for entry, _ in doomed:
                store.sweep_away(entry, now)
    again = swept.removed > 0 and goes_on(clause, bound, swept.kept, size - swept.bytes)
    return replace(swept, more=swept.more or again)


def _sweep_results(store: MemoryStore, clause: r.SweepClause, now: int) -> r.Swept:
    past = store.results_past(now, clause.limit + 1)
    doomed = past[: clause.limit]
    freed = sum(len(entry.result or b"") for entry in doomed)
    if not clause.dry_run:
        for entry in doomed:
            store.drop_result(entry)
    return r.Swept(len(doomed), freed, 0, len(past) > clause.limit)


def _sweep_keys(store: MemoryStore, clause: r.SweepClause, now: int) -> r.Swept:
    keys = store.outlived
    excess = 0 if clause.max_count is None else len(keys) - clause.max_count
    first = nsmallest(clause.limit + 1, keys, key=lambda place: keys[place][1])
    condemned = [place for n, place in enumerate(first) if n < excess or keys[place][1] <= now]
    doomed = condemned[: clause.limit]
    kept = len(keys) - len(doomed)
    if not clause.dry_run:
        for place in doomed:
            del keys[place]
    return r.Swept(len(doomed), 0, kept, len(condemned) > clause.limit)


def _sweep_tenants(store: MemoryStore, clause: r.SweepClause, now: int) -> r.Swept:
    idle = [
        (turns, name) for turns in store.turns.values() for name, tenant in turns.tenants.items() if tenant.is_idle(now)
    ]
    doomed = idle[: clause.limit]
    if not clause.dry_run:
        for turns, name in doomed:
            turns.forget(name)
    return r.Swept(len(doomed), 0, 0, len(idle) > clause.limit)
