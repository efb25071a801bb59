"""What the store says of itself, as metrics. Asked at most every few seconds, and never by counting jobs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct
from prometheus_client.core import Metric

from headrace.api.client import Client
from headrace.api.queue_health import listeners
from headrace.core.upkeep import MOST, OTHER, capped
from headrace.errors import ConfigError, HeadraceError
from headrace.keeping.budget import Measured, read_budget, usage_of
from headrace.keeping.waiting_ends import NOTHING, WaitingEnds, look_at_ended
from headrace.routing.sharded import ShardState
from headrace.seam.protocol import Backend
from headrace.seam.records import COUNTS, QueueStats, Stats, WorkerStats
from headrace.seam.usage import Usage
from headrace.seam.windows import WindowState
from headrace.web.families import gauge, pairs

_FRESH = 5.0
"""Seconds for which the store's numbers are used again."""
_PATIENCE = 3.0
_NOTHING = Usage(0)
_STATES = ("due", "scheduled", "running", "paused", "completed", "cancelled", "failed")
_WINDOW = ("waiting", "pending", "overdue", "lag")


class Beside(Struct, frozen=True):
    """What only some stores have."""

    budget: Measured | None = None
    windows: Sequence[WindowState] = ()
    shards: Sequence[ShardState] = ()


_NONE = Beside()


class StoreNumbers:
    """What the store says of itself, asked at most every few seconds, however many scrapes there are."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._asked = -_FRESH
        self.stats: Stats | None = None
        self.now = 0
        self.ended = NOTHING
        self.usage = _NOTHING
        self.beside = _NONE

    async def fresh(self) -> None:
        """Ask the store, unless it was asked lately."""
        async with self._lock:
            if time.monotonic() - self._asked < _FRESH:
                return
            try:
                async with asyncio.timeout(_PATIENCE):
                    self.stats, self.now = await self._client.stats(), await self._client.store_now()
                    backend = await self._client.backend()
                    self.ended, self.usage = await look_at_ended(backend, self.now), await usage_of(backend)
                    self.beside = await _look_beside(backend, self.usage)
            except (HeadraceError, OSError, TimeoutError):
                self.stats = None
            self._asked = time.monotonic()


async def _look_beside(backend: Backend, usage: Usage) -> Beside:
    windows = [] if backend.windows is None else await backend.windows.look()
    states = getattr(backend, "states", None)  # of a Router; others have no shards
    shards: list[ShardState] = [] if states is None else await states()
    try:
        budget = None if backend.documents is None else await read_budget(backend.documents)
    except ConfigError:  # a role that may not read it
        budget = None
    return Beside(Measured(usage, budget), windows, shards)


def of_store(
    stats: Stats | None,
    now: int,
    backend: str,
    ended: WaitingEnds = NOTHING,
    usage: Usage = _NOTHING,
    beside: Beside = _NONE,
) -> Iterator[Metric]:
    """What the store says of itself; None: it did not answer."""
    yield gauge("backend_up", "Whether the store answered.", ["backend"], [((backend,), stats is not None)])
    if stats is None:
        return
    queues = _largest(stats.queues)
    states = (((queue.queue, state), _number(queue, state)) for queue in queues for state in _STATES)
    yield gauge("queue_jobs", "Jobs.", ["queue", "state"], states)
    ages = (((queue.queue,), (queue.oldest_due_age or 0) / 1e6) for queue in queues)
    yield gauge("queue_oldest_ready_age_seconds", "How long the longest-waiting due job has waited.", ["queue"], ages)
    paused = (((queue.queue,), queue.paused) for queue in queues)
    yield gauge("queue_paused", "Whether the queue is paused.", ["queue"], paused)
    slots = (((queue.queue,), _slots(stats.workers, queue.queue)) for queue in queues)
    yield gauge("queue_slots", "Slots of workers that claim from the queue.", ["queue"], slots)
    dead = (((queue.queue,), queue.failed) for queue in queues)
    yield gauge("dlq_jobs", "Dead letters.", ["queue"], dead)
    size = next((kept.bytes for kept in stats.kept if kept.target == "failed"), 0)
    yield gauge("dlq_bytes", "Bytes of all dead letters.", [], [((), size)])
    words = "How long ago the oldest dead letter of the store died; 0 if there is none."
    yield gauge("dlq_oldest_age_seconds", words, [], [((), ended.dead_letter or 0.0)])
    if ended.vault is not None:
        words = "How long ago the oldest job ended that is not in the vault yet; 0 if all are."
        yield gauge("vault_lag_seconds", words, [], [((), ended.vault)])
    kept = [((one.target,), one.count) for one in stats.kept]
    yield gauge("kept_records", "Ended jobs, ticks and keys that are kept.", ["class"], kept)
    yield gauge("backend_bytes", "Bytes of the store, where it can tell.", ["backend"], [((backend,), usage.used)])
    parts = [((backend, part), number) for part, number in usage.parts.items()]
    words = "More about that: bytes that are free, logged or kept aside, commits, failed backups, if it has them."
    yield gauge("backend_part", words, ["backend", "part"], parts)
    yield from _of_budget(beside.budget)
    yield from _of_windows(beside.windows)
    yield from _of_shards(beside.shards)
    yield gauge("workers", "Workers that are alive.", [], [((), len(stats.workers))])
    yield from _of_workers(stats.workers)
    yield gauge("store_timestamp_seconds", "The store's clock.", [], [((), now / 1e6)])


def _of_budget(measured: Measured | None) -> Iterator[Metric]:
    if measured is not None and measured.limit is not None:
        words = "Bytes that the store may take up: its budget, or what it has."
        yield gauge("budget_bytes", words, [], [((), measured.limit)])
        words = "Which part of them is used; from 0.85 of a budget on, new jobs are refused."
        yield gauge("budget_used_ratio", words, [], [((), measured.share)])


def _of_windows(windows: Sequence[WindowState]) -> Iterator[Metric]:
    """The largest by name, and all others together."""
    if not windows:
        return
    jobs: Counter[tuple[str, str]] = Counter()
    for number, one in enumerate(sorted(windows, key=lambda one: one.waiting + one.pending, reverse=True)):
        queue = one.queue if number < MOST - 1 else OTHER
        for state in _WINDOW:
            jobs[queue, state] += getattr(one, state)
    words = "Jobs of a queue's window: not given out yet, given out and not settled, of these with leases that ended, "
    yield gauge("window_jobs", words + "and in line, read by nobody.", ["queue", "state"], sorted(jobs.items()))


def _of_shards(shards: Sequence[ShardState]) -> Iterator[Metric]:
    if not shards:
        return
    yield gauge("shard_up", "Whether the shard answers.", ["shard"], [((one.name,), not one.error) for one in shards])
    jobs = [((one.name, state), getattr(one, state)) for one in shards for state in ("waiting", "running", "copies")]
    yield gauge("shard_jobs", "Jobs of the shard.", ["shard", "state"], jobs)


def _of_workers(workers: list[WorkerStats]) -> Iterator[Metric]:
    """Workers may share a name, and are one then."""
    slots: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    seen: dict[str, float] = {}
    for worker in workers:
        name = capped(slots, worker.worker)
        slots[name] += worker.slots
        busy[name] += worker.busy
        seen[name] = max(seen.get(name, 0.0), worker.seen_at / 1e6)
    yield gauge("worker_slots", "Slots.", ["worker"], pairs(slots))
    yield gauge("worker_slots_busy", "Slots that run a job.", ["worker"], pairs(busy))
    beats = [((name,), at) for name, at in seen.items()]
    yield gauge("worker_last_heartbeat_timestamp_seconds", "When it was last heard from.", ["worker"], beats)


def _slots(workers: Sequence[WorkerStats], queue: str) -> int:
    return sum(worker.slots for worker in listeners(queue, workers))


def _largest(queues: list[QueueStats]) -> list[QueueStats]:
    """The queues with most jobs by name, and all others together."""
    if len(queues) <= MOST:
        return queues
    ranked = sorted(queues, key=lambda queue: queue.available + queue.running + queue.failed, reverse=True)
    named = [queue for queue in ranked[: MOST - 1] if queue.queue != OTHER]
    names = {queue.queue for queue in named}
    rest = [queue for queue in ranked if queue.queue not in names]
    sums = {name: sum(getattr(queue, name) for queue in rest) for name in COUNTS}
    oldest = max((queue.oldest_due_age or 0 for queue in rest), default=0)
    return [*named, QueueStats(OTHER, oldest_due_age=oldest or None, **sums)]


def _number(queue: QueueStats, state: str) -> int:
    return int(getattr(queue, "jobs_paused" if state == "paused" else state))
