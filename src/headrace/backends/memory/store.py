"""What the memory backend keeps: jobs, the places they lie in, and the indexes over them."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush

from headrace.backends.mailbox import Mailbox
from headrace.records import Cells, Hint, JobId, Record, Row, WorkerStats
from headrace.types import JobState

LIVE = (JobState.AVAILABLE, JobState.RUNNING, JobState.PAUSED)
_ENTRY_BYTES = 200


class Entry:
    """One job, mutable, wherever it lies."""

    __slots__ = (
        "attempt", "cancel_requested", "cells", "enqueued_at", "epoch", "error", "expires_at", "finished_at", "headers",
        "held_until", "holder", "id", "key", "lease_until", "lost", "max_attempts", "priority", "queue", "reason",
        "result", "result_ttl", "run_at", "size", "state", "task", "tenant", "timeout",
    )  # fmt: skip

    def __init__(self, row: Row, now: int) -> None:
        self.id = row.id
        self.queue = row.queue
        self.task = row.task
        self.tenant = row.tenant
        self.key = row.key
        self.priority = row.priority
        self.run_at = now + row.delay if row.run_at is None else row.run_at
        self.enqueued_at = now
        self.expires_at = None if row.expires is None else now + row.expires
        self.max_attempts = row.max_attempts
        self.timeout = row.timeout
        self.result_ttl = row.result_ttl
        self.headers = row.headers
        self.cells: Cells = dict(row.cells)
        self.state = JobState.AVAILABLE
        self.epoch = 0
        self.attempt = 0
        self.lost = 0
        self.holder = ""
        self.lease_until = 0
        self.cancel_requested = False
        self.finished_at: int | None = None
        self.held_until = 0
        self.reason = ""
        self.error: bytes | None = None
        self.result: bytes | None = None
        self.size = 0

    def measure(self) -> int:
        """About what this job takes up."""
        texts = len(self.queue) + len(self.task) + len(self.tenant) + len(self.key or "")
        blobs = len(self.error or b"") + len(self.result or b"") + len(self.headers or b"")
        return _ENTRY_BYTES + texts + blobs + sum(map(len, self.cells.values()))


class MemoryStore:
    """The shared state behind every handle on one memory store; its lock is held during each operation."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.jobs: dict[JobId, Entry] = {}
        self.running: dict[JobId, Entry] = {}
        self.ended: dict[JobState, dict[JobId, Entry]] = {
            JobState.COMPLETED: {},
            JobState.CANCELLED: {},
            JobState.FAILED: {},
        }
        self.keys: dict[tuple[str, str], JobId] = {}
        self.inboxes: dict[JobId, set[str]] = {}
        self.paused_queues: set[str] = set()
        self.workers: dict[str, tuple[WorkerStats, int]] = {}
        self.counts: Counter[tuple[str, JobState]] = Counter()
        self.sizes: Counter[JobState] = Counter()
        self._ready: defaultdict[str, dict[int, list[tuple[int, JobId]]]] = defaultdict(dict)
        self._expiring: list[tuple[int, JobId]] = []
        self._holding: list[tuple[int, JobId]] = []
        self._mailboxes: defaultdict[str, set[Mailbox]] = defaultdict(set)

    # -- jobs and places

    def add(self, entry: Entry) -> None:
        """A new job, AVAILABLE."""
        self.jobs[entry.id] = entry
        if entry.key is not None:
            self.keys[entry.queue, entry.key] = entry.id
        if entry.expires_at is not None:
            heappush(self._expiring, (entry.expires_at, entry.id))
        self._enter(entry)

    def move(self, entry: Entry, state: JobState) -> None:
        """Take the job out of the place it lies in and put it into another."""
        self._leave(entry)
        entry.state = state
        self._enter(entry)

    def remove(self, entry: Entry) -> None:
        """Forget the job, its key and its waiters."""
        self._leave(entry)
        del self.jobs[entry.id]
        self.drop_key(entry)
        self.inboxes.pop(entry.id, None)

    def drop_key(self, entry: Entry) -> None:
        """The key no longer leads to this job."""
        if entry.key is not None and self.keys.get((entry.queue, entry.key)) == entry.id:
            del self.keys[entry.queue, entry.key]

    def key_holder(self, queue: str, key: str, now: int) -> Entry | None:
        """The job that keeps others from taking the key: live, or completed and still held."""
        entry = self.by_key(queue, key)
        if entry is None or entry.state in LIVE:
            return entry
        return entry if entry.state is JobState.COMPLETED and entry.held_until > now else None

    def by_key(self, queue: str, key: str) -> Entry | None:
        """The job that last took the key."""
        job_id = self.keys.get((queue, key))
        return None if job_id is None else self.jobs[job_id]

    def _enter(self, entry: Entry) -> None:
        self.counts[entry.queue, entry.state] += 1
        if entry.state is JobState.AVAILABLE:
            heap = self._ready[entry.queue].setdefault(entry.priority, [])
            heappush(heap, (entry.run_at, entry.id))
        elif entry.state is JobState.RUNNING:
            self.running[entry.id] = entry
        elif entry.state.terminal:
            self.ended[entry.state][entry.id] = entry
            entry.size = entry.measure()
            self.sizes[entry.state] += entry.size
            if entry.result is not None:
                heappush(self._holding, (entry.held_until, entry.id))

    def _leave(self, entry: Entry) -> None:
        self.counts[entry.queue, entry.state] -= 1
        if entry.state is JobState.RUNNING:
            del self.running[entry.id]
        elif entry.state.terminal:
            del self.ended[entry.state][entry.id]
            self.sizes[entry.state] -= entry.size

    # -- indexes

    def due(self, queue: str, now: int) -> Iterator[Entry]:
        """The queue's due jobs by (priority, run_at, id); each is out of the index once it has been given out."""
        levels = self._ready[queue]
        for priority in sorted(levels):
            heap = levels[priority]
            while (entry := self._top(heap, queue, priority)) is not None and entry.run_at <= now:
                heappop(heap)
                yield entry
            if not heap:
                del levels[priority]

    def put_back(self, entry: Entry) -> None:
        """A job that ``due`` gave out and nobody took."""
        heappush(self._ready[entry.queue].setdefault(entry.priority, []), (entry.run_at, entry.id))

    def next_due(self, queue: str) -> int | None:
        """The earliest ``run_at`` of the queue's available jobs."""
        tops = (self._top(heap, queue, level) for level, heap in self._ready[queue].items())
        return min((top.run_at for top in tops if top is not None), default=None)

    def scheduled(self, queue: str, now: int, cap: int) -> int:
        """How many available jobs are not due yet, up to ``cap``."""
        items = (item for heap in self._ready[queue].values() for item in heap if item[0] > now)
        entries = ((at, self.jobs.get(job_id)) for at, job_id in items)
        waiting = (JobState.AVAILABLE, queue)
        found = {e.id for at, e in entries if e is not None and e.run_at == at and (e.state, e.queue) == waiting}
        return min(len(found), cap)

    def _top(self, heap: list[tuple[int, JobId]], queue: str, priority: int) -> Entry | None:
        while heap:
            run_at, job_id = heap[0]
            entry = self.jobs.get(job_id)
            if (
                entry is not None
                and entry.state is JobState.AVAILABLE
                and (entry.queue, entry.priority, entry.run_at) == (queue, priority, run_at)
            ):
                return entry
            heappop(heap)
        return None

    def expired(self, now: int, limit: int) -> list[Entry]:
        """Due jobs whose expiry has passed, at most ``limit``; they are out of this index."""
        found: list[Entry] = []
        later: list[tuple[int, JobId]] = []
        while self._expiring and self._expiring[0][0] <= now and len(found) < limit:
            item = heappop(self._expiring)
            entry = self.jobs.get(item[1])
            if entry is None or entry.state.terminal or entry.expires_at != item[0]:
                continue
            if entry.state is JobState.AVAILABLE and entry.run_at <= now:
                found.append(entry)
            else:
                later.append(item)
        for item in later:
            heappush(self._expiring, item)
        return found

    def results_past(self, now: int, limit: int, *, take: bool) -> list[Entry]:
        """Jobs whose kept result is past its ttl, oldest first."""
        found: dict[JobId, Entry] = {}
        items: list[tuple[int, JobId]] = []
        while self._holding and self._holding[0][0] <= now and len(found) < limit:
            item = heappop(self._holding)
            entry = self.jobs.get(item[1])
            if entry is not None and entry.result is not None and entry.held_until == item[0]:
                found[entry.id] = entry
                items.append(item)
        if not take:
            for item in items:
                heappush(self._holding, item)
        return list(found.values())

    def hold(self, entry: Entry, until: int) -> None:
        """Hold the result of a completed job until then."""
        entry.held_until = until
        heappush(self._holding, (until, entry.id))

    # -- hints

    def subscribe(self, topic: str, mailbox: Mailbox) -> None:
        self._mailboxes[topic].add(mailbox)

    def unsubscribe(self, topic: str, mailbox: Mailbox) -> None:
        self._mailboxes[topic].discard(mailbox)
        if not self._mailboxes[topic]:
            del self._mailboxes[topic]

    def publish(self, topic: str, job_id: JobId | None = None) -> None:
        if topic in self._mailboxes:
            for mailbox in self._mailboxes[topic]:
                mailbox.post(Hint(topic, job_id))

    # -- views

    def record(self, entry: Entry, want: frozenset[str], now: int) -> Record:
        """What an outsider may know of the job."""
        held = entry.state is JobState.COMPLETED and entry.held_until > now
        listed = self.workers.get(entry.holder) if entry.state is JobState.RUNNING else None
        running = entry.state is JobState.RUNNING
        return Record(
            id=entry.id,
            queue=entry.queue,
            task=entry.task,
            state=entry.state,
            tenant=entry.tenant,
            key=entry.key,
            priority=entry.priority,
            run_at=entry.run_at,
            enqueued_at=entry.enqueued_at,
            expires_at=entry.expires_at,
            finished_at=entry.finished_at,
            epoch=entry.epoch,
            attempt=entry.attempt,
            lost=entry.lost,
            max_attempts=entry.max_attempts,
            timeout=entry.timeout,
            result_ttl=entry.result_ttl,
            headers=entry.headers,
            worker=listed[0].worker if listed and listed[1] > now else "",
            lease_until=entry.lease_until if running else None,
            cancel_requested=running and entry.cancel_requested,
            reason=entry.reason,
            cells={name: cell for name, cell in entry.cells.items() if name in want},
            error=entry.error if "error" in want else None,
            result=entry.result if held and "result" in want else None,
            held=held,
        )
