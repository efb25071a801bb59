"""sweep: what has ended or was planned long ago, oldest first, a bounded number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any

from msgspec.structs import replace

from headrace.backends.memory.entry import Entry
from headrace.backends.memory.ledger import TICK_BYTES
from headrace.backends.memory.store import MemoryStore
from headrace.backends.memory.turns import MemoryTurns
from headrace.seam import records as r
from headrace.seam.dead_letter_shares import bound_of, condemn, goes_on
from headrace.types import JobState

Sized = tuple[Any, int]
"""Something, and how many bytes it takes."""


def sweep(store: MemoryStore, clause: r.SweepClause, now: int) -> r.Swept:
    """Remove what the clause condemns."""
    total, again = 0, False
    remove: Callable[[Any], None] = partial(store.sweep_away, now=now)
    match clause.target:
        case r.SweepTarget.RESULTS:
            past = store.results_past(now, clause.limit + 1)
            condemned: list[Sized] = [(entry, len(entry.result or b"")) for entry in past]
            remove = store.drop_result
        case r.SweepTarget.KEYS:
            total, remove = len(store.outlived), store.outlived.__delitem__
            condemned = [(key, 0) for key in _keys(store, clause, now)]
        case r.SweepTarget.TENANTS:
            condemned = [((turns, name), 0) for turns in store.turns.values() for name in turns.idle(now)]
            remove = _forget_tenant
        case r.SweepTarget.TICKS:
            total, remove = len(store.ledger.ticks), store.ledger.remove
            condemned = [(tick, TICK_BYTES) for tick in islice(_ticks(store, clause, now), clause.limit + 1)]
        case place if clause.jobs is not None:
            total = len(store.ended[JobState(place.value)])
            condemned = _named(store, clause, clause.jobs, now)
        case r.SweepTarget.FAILED:
            total = len(store.ended[JobState.FAILED])
            condemned, again = _dead_letters(store, clause, now)
        case place:
            total = len(store.ended[JobState(place.value)])
            condemned = list(islice(_ended(store, clause, now), clause.limit + 1))
    going = condemned[: clause.limit]
    if not clause.dry_run:
        for one, _ in going:
            if isinstance(one, Entry) and clause.target is not r.SweepTarget.RESULTS:
                store.removals.add(one)
            remove(one)
    freed = sum(size for _, size in going)
    return r.Swept(len(going), freed, max(0, total - len(going)), again or len(condemned) > clause.limit)


def _forget_tenant(tenant: tuple[MemoryTurns, str]) -> None:
    turns, name = tenant
    turns.forget(name)


def _ended(store: MemoryStore, clause: r.SweepClause, now: int) -> Iterator[tuple[Entry, int]]:
    """What is over a bound, or is old and not held."""
    state = JobState(clause.target.value)
    ended = store.ended[state]
    excess = 0 if clause.max_count is None else len(ended) - clause.max_count
    over = 0 if clause.max_bytes is None else store.sizes[state] - clause.max_bytes
    for entry in ended.values():
        finished_at = entry.finished_at or 0
        old = clause.older_than is not None and finished_at <= now - clause.older_than
        if finished_at > clause.latest(now) or not (old or excess > 0 or over > 0):
            break
        held = state is JobState.COMPLETED and entry.held_until > now
        if (old and not held) or excess > 0 or over > 0:
            excess -= 1
            over -= entry.size
            yield entry, entry.size


def _named(store: MemoryStore, clause: r.SweepClause, jobs: Sequence[tuple[r.JobId, int]], now: int) -> list[Sized]:
    """Those of the jobs that a clause names which it condemns."""
    state = JobState(clause.target.value)
    latest = clause.latest(now) if clause.older_than is None else min(clause.latest(now), now - clause.older_than)
    found = ((store.ended[state].get(job_id), epoch) for job_id, epoch in dict.fromkeys(jobs))
    return [
        (entry, entry.size)
        for entry, epoch in found
        if entry is not None and entry.epoch == epoch and (entry.finished_at or 0) <= latest
        and not (state is JobState.COMPLETED and entry.held_until > now)
    ]  # fmt: skip


def _dead_letters(store: MemoryStore, clause: r.SweepClause, now: int) -> tuple[list[Sized], bool]:
    """What is too old; if there is none, what is too much. And whether those that are left are over another bound."""
    failed, size, bound = store.ended[JobState.FAILED], store.sizes[JobState.FAILED], "age"
    aged = _ended(store, replace(clause, max_count=None, max_bytes=None), now)
    condemned = list(islice(aged, clause.limit + 1))
    if not condemned:
        bound, excess = bound_of(clause, len(failed), size)

        def oldest(tenant: str | None) -> Iterator[tuple[Entry, int]]:
            for entry in (failed if tenant is None else store.dead.of[tenant]).values():
                if (entry.finished_at or 0) > clause.latest(now):
                    break
                yield entry, entry.size

        heaviest = store.dead.heaviest(bound, clause.limit + 1) if bound else []
        condemned = condemn(bound, excess, clause.limit, heaviest, oldest)
    kept = len(failed) - len(condemned)
    return condemned, bool(condemned) and goes_on(clause, bound, kept, size - sum(each for _, each in condemned))


def _keys(store: MemoryStore, clause: r.SweepClause, now: int) -> list[tuple[str, str]]:
    keys = store.outlived
    excess = 0 if clause.max_count is None else len(keys) - clause.max_count
    first = nsmallest(clause.limit + 1, keys, key=lambda key: keys[key][1])
    return [key for n, key in enumerate(first) if n < excess or keys[key][1] <= now]


def _ticks(store: MemoryStore, clause: r.SweepClause, now: int) -> Iterator[tuple[bytes, int]]:
    """What has been on the ledger for too long, or is too much."""
    ticks = store.ledger.ticks
    excess = 0 if clause.max_count is None else len(ticks) - clause.max_count
    if clause.max_bytes is not None:
        excess = max(excess, -((clause.max_bytes - len(ticks) * TICK_BYTES) // TICK_BYTES))
    for number, (name, tick) in enumerate(ticks.items()):
        old = clause.older_than is not None and tick.planned_at <= now - clause.older_than
        if not old and number >= excess:
            break
        yield name
