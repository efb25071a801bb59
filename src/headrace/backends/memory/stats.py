"""stats: the store in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.listed_workers import claiming_from
from headrace.backends.memory.ledger import TICK_BYTES
from headrace.backends.memory.store import MemoryStore
from headrace.seam.policy import FOREVER
from headrace.seam.records import KeptStats, QueueStats, Stats, SweepTarget
from headrace.types import JobState


def stats(store: MemoryStore, queues: Sequence[str] | None, now: int) -> Stats:
    """Of these queues, or of all and of what has ended."""
    names = {queue for queue, _ in store.counts} | store.paused_queues.keys() if queues is None else set(queues)
    found = [_queue(store, queue, now) for queue in sorted(names) if _in_use(store, queue, now)]
    workers = [listed.stats for listed in store.workers.values() if listed.until > now]
    if queues is not None:
        return Stats(found, claiming_from(queues, workers), [])
    kept = [KeptStats(state.value, len(jobs), store.sizes[state]) for state, jobs in store.ended.items()]
    kept.append(KeptStats(SweepTarget.KEYS.value, len(store.outlived), 0))
    ticks = len(store.ledger.ticks)
    kept.append(KeptStats(SweepTarget.TICKS.value, ticks, ticks * TICK_BYTES))
    return Stats(found, workers, kept)


def _in_use(store: MemoryStore, queue: str, now: int) -> bool:
    return store.paused(queue, now) or any(store.counts[queue, state] for state in JobState)


def _queue(store: MemoryStore, queue: str, now: int) -> QueueStats:
    available, running, paused, completed, cancelled, failed = (store.counts[queue, state] for state in JobState)
    oldest = store.oldest(queue)
    until = store.paused_queues.get(queue, 0)
    age = now - oldest if oldest is not None and oldest <= now else None
    later = store.next_after(queue, now)
    return QueueStats(
        queue, until > now, available, store.scheduled(queue, now), running, paused, completed, cancelled,
        failed, age, until if now < until < FOREVER else None, None if later is None else later - now,
    )  # fmt: skip
