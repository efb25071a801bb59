"""stats: the store in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.listing import claiming_from
from headrace.backends.memory.store import MemoryStore
from headrace.backends.memory.ticks import TICK_BYTES
from headrace.seam.policy import FOREVER
from headrace.seam.records import Place, PlaceStats, QueueStats, Stats
from headrace.types import JobState


def stats(store: MemoryStore, queues: Sequence[str] | None, count_cap: int, now: int) -> Stats:
    """Of these queues, or of all and of what has ended."""
    workers = [listed.stats for listed in store.workers.values() if listed.until > now]
    if queues is not None:
        known = [
            _queue_stats(store, queue, count_cap, now) for queue in sorted(set(queues)) if _in_use(store, queue, now)
        ]
        return Stats(known, claiming_from(queues, workers), [])
    names = {queue for (queue, _), count in store.counts.items() if count}
    names |= {queue for queue in store.paused_queues if store.paused(queue, now)}
    ended = [PlaceStats(state.value, len(jobs), store.sizes[state]) for state, jobs in store.ended.items()]
    ticks = len(store.ledger.ticks)
    return Stats(
        [_queue_stats(store, queue, count_cap, now) for queue in sorted(names)],
        workers,
        [
            *ended,
            PlaceStats(Place.KEYS.value, len(store.outlived), 0),
            PlaceStats(Place.TICKS.value, ticks, ticks * TICK_BYTES),
        ],
    )


def _in_use(store: MemoryStore, queue: str, now: int) -> bool:
    return store.paused(queue, now) or any(store.counts.get((queue, state), 0) for state in JobState)


def _queue_stats(store: MemoryStore, queue: str, count_cap: int, now: int) -> QueueStats:
    counts = store.counts
    oldest = store.oldest(queue)
    until = store.paused_queues.get(queue, 0)
    return QueueStats(
        queue,
        until > now,
        counts[queue, JobState.AVAILABLE],
        store.scheduled(queue, now, count_cap),
        counts[queue, JobState.RUNNING],
        counts[queue, JobState.PAUSED],
        counts[queue, JobState.COMPLETED],
        counts[queue, JobState.CANCELLED],
        counts[queue, JobState.FAILED],
        now - oldest if oldest is not None and oldest <= now else None,
        until if now < until < FOREVER else None,
    )
