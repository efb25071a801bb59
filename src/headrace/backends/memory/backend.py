"""The ten operations on a :class:`MemoryStore`: the shortest true reading of the protocol."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from heapq import nlargest, nsmallest

from headrace.backends.archive import Archive, End
from headrace.backends.mailbox import Mailbox
from headrace.backends.memory.claiming import Claiming
from headrace.backends.memory.documents import MemoryDocuments
from headrace.backends.memory.entry import Entry
from headrace.backends.memory.fleet import Listed
from headrace.backends.memory.journal import MemoryJournal
from headrace.backends.memory.leasing import reaped
from headrace.backends.memory.parts import MemoryParts
from headrace.backends.memory.policies import MemoryPolicies
from headrace.backends.memory.references import MemoryReferences
from headrace.backends.memory.stats import stats
from headrace.backends.memory.store import LIVE, MemoryStore
from headrace.backends.memory.sweeping import sweep
from headrace.backends.memory.ticks import MemoryTicks
from headrace.backends.memory.tracks import MemoryTracks
from headrace.backends.memory.transfers import MemoryTransfers
from headrace.backends.settlement_checks import check_settled
from headrace.seam import records as r
from headrace.seam.archive import Mark
from headrace.seam.usage import Usage
from headrace.types import JobState

_COMPLETED = JobState.COMPLETED


def _wall_clock() -> int:
    return time.time_ns() // 1_000


class MemoryBackend:
    """Jobs in this process's memory. Handles made by ``sibling`` share them; they are gone with the process."""

    limits = r.Limits(durable="nothing survives the process")
    tx = None
    blocking = None
    tables = None
    tidy = None
    reserve = None
    windows = None

    def __init__(self, store: MemoryStore | None = None, now: Callable[[], int] = _wall_clock) -> None:
        self.store = MemoryStore() if store is None else store
        self._now = now
        self.ticks = MemoryTicks(self.store, self._begin, self._insert, self._cancel)
        self.policies = MemoryPolicies(self.store, self._begin, self.limits.count_cap)
        self.references = MemoryReferences(self.store, self._begin)
        self.documents = MemoryDocuments(self.store, self._begin)
        self.archive = Archive(self._ends, self.fetch, self.store.removals)
        self.tracks = MemoryTracks(self.store, self._begin)
        self.transfers = MemoryTransfers(self.store, self._begin)
        self.journal = MemoryJournal(self.store.journal, self._now)
        self.parts = MemoryParts(self.store, self._begin)
        self.events = self.store.events
        self._claiming = Claiming(self.store)

    def _begin(self, at: r.Stamp) -> int:
        """Begin an operation, under the lock: its instant."""
        self.store.now = self._now() if at is None else at
        return self.store.now

    @property
    def hints(self) -> MemoryBackend:
        return self

    def sibling(self) -> MemoryBackend:
        return type(self)(self.store, self._now)

    async def open(self) -> None:
        pass

    async def now(self, at: r.Stamp = None) -> int:
        return self._now() if at is None else at

    async def close(self) -> None:
        pass

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[r.Hint]]:
        mailbox = Mailbox()
        with self.store.lock:
            for topic in topics:
                self.store.subscribe(topic, mailbox)
        try:
            yield aiter(mailbox)
        finally:
            with self.store.lock:
                for topic in topics:
                    self.store.unsubscribe(topic, mailbox)

    # -- insert

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        with self.store.lock:
            now = self._begin(at)
            answers = [self._insert(row, now, gate=True) for row in rows]
            for queue in {row.queue: None for row in rows}:
                self.store.publish(f"queue:{queue}")
            return answers

    def _insert(self, row: r.Row, now: int, *, gate: bool = False) -> r.Inserted:
        known = self.store.jobs.get(row.id)
        if known is not None:
            return r.Inserted(r.InsertStatus.SAME, row.id, known.state, None, known.attempt)
        if row.key is not None:
            last = self.store.by_key(row.queue, row.key)
            if last is not None and _keeps_key(last, row):
                if row.reply_to is not None and last.state in LIVE:
                    self.store.watch(last.id, row.reply_to)
                status = r.InsertStatus.REPLACED if self._replace(last, row, now) else r.InsertStatus.DUPLICATE
                return r.Inserted(status, last.id, last.state, None, last.attempt)
            kept = row.key_until is r.KeyUntil.KEPT
            if kept and last is not None and last.state is JobState.COMPLETED and last.held_until > now:
                return r.Inserted(r.InsertStatus.DONE, last.id, last.state, last.result, last.attempt)
            if kept and (job_id := self.store.outliving(row.queue, row.key, now)) is not None:
                return r.Inserted(r.InsertStatus.DUPLICATE, job_id, JobState.COMPLETED)
        if gate and (room := self.store.full(row.queue)):
            return r.Inserted(r.InsertStatus.FULL, row.id, room=room)
        self.store.add(Entry(row, now))
        if row.reply_to is not None:
            self.store.watch(row.id, row.reply_to)
        return r.Inserted(r.InsertStatus.NEW, row.id)

    def _replace(self, entry: Entry, row: r.Row, now: int) -> bool:
        """Let a waiting job take on what the row replaces; whether it does."""
        same = (entry.task, entry.tenant) == (row.task, row.tenant)
        if not row.replaces or entry.state not in r.Reschedule.applies or not same:
            return False
        if row.replaces & r.Replaces.CELLS:
            entry.cells = dict(row.cells)
        if row.replaces & r.Replaces.TIME:
            self.store.expire(entry, None if row.expires is None else now + row.expires)
            self._apply(entry, r.Reschedule(row.delay, row.run_at), now)
        return True

    # -- claim

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        with self.store.lock:
            return self._claiming.claim(req, self._begin(at))

    # -- finish

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        with self.store.lock:
            check_settled(batch)
            now = self._begin(at)
            return self._finish_all(batch, now)

    async def finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        with self.store.lock:
            check_settled(batch)
            now = self._begin(at)
            return self._finish_all(batch, now), self._claiming.claim(req, now)

    def _finish_all(self, batch: Sequence[r.Settlement], now: int) -> list[JobState | None]:
        states = [self._finish(settlement, now) for settlement in batch]
        for settlement, state in zip(batch, states, strict=True):
            for row in settlement.spawn if state is not None else ():
                self._insert(row, now)
                self.store.publish(f"queue:{row.queue}")
        return states

    def _held_by(self, job_id: r.JobId, epoch: int, holder: str) -> Entry | None:
        entry = self.store.running.get(job_id)
        return entry if entry is not None and entry.epoch == epoch and entry.holder == holder else None

    def _finish(self, s: r.Settlement, now: int) -> JobState | None:
        entry = self._held_by(s.id, s.epoch, s.holder)
        if entry is None:
            return None
        state, reason = s.state, s.reason
        asked = entry.cancel_requested
        if asked and (not state.terminal or (state is JobState.CANCELLED and reason == "cancelled")):
            state, reason = JobState.CANCELLED, _asked_reason(entry)
        entry.attempt += s.failed_attempt
        if not s.keep_lost:
            entry.lost = 0
        if s.error is not None:
            entry.error = s.error
        if s.cells is not None:
            for name, cell in s.cells.items():
                if cell is None:
                    entry.cells.pop(name, None)
                else:
                    entry.cells[name] = cell
        if s.queue is not None and s.queue != entry.queue:
            self._change_queue(entry, s.queue, now)
        if s.priority is not None:
            entry.priority = s.priority
        if state in self.store.ended:
            if state is _COMPLETED:
                entry.result = s.result if s.result_ttl > 0 else None
                entry.held_until = now + s.result_ttl
            self.store.end(entry, state, reason)
            if not s.keep and state is _COMPLETED:
                self.store.remove(entry)
        else:
            entry.begun = not s.unbegun
            delayed = entry.run_at if s.delay is None else now + s.delay
            self._release(entry, state, delayed if s.run_at is None else s.run_at)
        return state

    def _release(self, entry: Entry, state: JobState, run_at: int) -> None:
        entry.run_at = run_at
        entry.holder = ""
        self.store.move(entry, state)
        if state is JobState.AVAILABLE:
            self.store.publish(f"queue:{entry.queue}")

    def _key_taken(self, entry: Entry, queue: str, now: int) -> bool:
        return entry.key is not None and self.store.key_owner(queue, entry.key, now) is not None

    def _change_queue(self, entry: Entry, queue: str, now: int) -> bool:
        """Move a job and its key. If the key is taken there, the job goes without it, and the answer is False."""
        free = not self._key_taken(entry, queue, now)
        self.store.drop_key(entry)
        self.store.move(entry, entry.state, queue=queue)
        if entry.key is not None and free:
            self.store.take_key(entry, queue, entry.key)
        elif not free:
            entry.key = None
        return free

    # -- renew and reap

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        with self.store.lock:
            now = self._begin(at)
            store = self.store
            known = store.workers.get(beat.holder)
            if beat.leaving:
                store.workers.pop(beat.holder, None)
            else:
                if known is None or known.until <= now:
                    store.absence.look(store.workers, beat, now)
                started = known.stats.started_at if known else now
                steady = known.steady_since if known and now - known.stats.seen_at <= beat.gap else now
                stats = r.WorkerStats(beat.worker, beat.queues, beat.slots, beat.busy, started, now)
                store.workers[beat.holder] = Listed(stats, now + beat.ttl, steady)
            lost = []
            for job_id, epoch in beat.leases:
                entry = self._held_by(job_id, epoch, beat.holder)
                if entry is None:
                    lost.append((job_id, epoch))
                else:
                    entry.lease_until = now + beat.lease_for
                    entry.progress = beat.progress.get(job_id, entry.progress)
            cancels = [e.id for e in store.running.values() if e.cancel_requested and e.holder == beat.holder]
            paused = [queue for queue in beat.queues if store.paused(queue, now)]
            first = nsmallest(r.CENSUS, store.running.values(), key=lambda e: e.lease_until) if beat.census else []
            held = [(e.id, e.epoch, e.begun_before) for e in first if e.holder == beat.holder]
            return r.Renewed(lost, cancels, paused, held=held, overdue=bool(first) and first[0].lease_until <= now)

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        with self.store.lock:
            now = self._begin(at)
            steady = req.holder is None or self._steady(req, req.holder, now)
            if steady:
                self.store.workers = {h: listed for h, listed in self.store.workers.items() if listed.until > now}
            over = [e for e in self.store.running.values() if e.lease_until <= now] if steady else []
            taken = nsmallest(req.limit, over, key=lambda e: (e.lease_until, e.id))
            expired = list(self.store.expired(now, req.limit - len(taken)))
            self.store.expire_all(expired)
            return [
                self._reap(entry, req, now, offset=req.spread * i // len(taken)) for i, entry in enumerate(taken)
            ] + [reaped(entry) for entry in expired]

    def _steady(self, req: r.Reap, holder: str, now: int) -> bool:
        """Whether the holders of expired leases had time to show that they live."""
        listed = self.store.workers.get(holder)
        if listed is None:
            return False
        return listed.stats.seen_at >= now - req.gap and listed.steady_since <= now - req.steady

    def _reap(self, entry: Entry, req: r.Reap, now: int, *, offset: int) -> r.Reaped:
        if entry.cancel_requested:
            self.store.end(entry, JobState.CANCELLED, _asked_reason(entry))
            return reaped(entry)
        charged = self._charged(entry)
        entry.lost += charged
        if charged and entry.lost > req.max_lost:
            self.store.end(entry, JobState.FAILED, "lost")
        else:
            self._release(entry, JobState.AVAILABLE, now + offset)
        return reaped(entry)

    def _charged(self, entry: Entry) -> bool:
        return not self.store.absence.spares(entry.lease_until)

    # -- alter

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        with self.store.lock:
            now = self._begin(at)
            if sel.ids is not None or sel.keys is not None:
                named = [e for e in self._named(sel) if _matches(e, sel, now)]
                return [self._alter(entry, change, now) for entry in named]
            eligible = (
                e
                for e in self.store.jobs.values()
                if e.state in change.applies
                and not (isinstance(change, r.Cancel) and e.cancel_requested)
                and _matches(e, sel, now)
            )
            return [self._alter(e, change, now) for e in nsmallest(sel.limit, eligible, key=lambda e: e.id)]

    def _cancel(self, job_id: r.JobId, change: r.Cancel, now: int) -> None:
        self._alter(self.store.jobs[job_id], change, now)

    def _named(self, sel: r.Selector) -> list[Entry]:
        by_id = [self.store.jobs.get(job_id) for job_id in sel.ids or ()]
        by_key = [self.store.by_key(name.queue, name.key) for name in sel.keys or ()]
        return [entry for entry in dict.fromkeys(by_id + by_key) if entry is not None]

    def _alter(self, entry: Entry, change: r.Change, now: int) -> r.Altered:
        before = entry.state
        if before not in change.applies or not self._apply(entry, change, now):
            return r.Altered(entry.id, before, before, False, entry.queue, entry.key)
        after = entry.state if entry.id in self.store.jobs else None
        return r.Altered(entry.id, before, after, True, entry.queue, entry.key)

    def _apply(self, entry: Entry, change: r.Change, now: int) -> bool:
        match change:
            case r.Cancel(reason):
                if entry.state is JobState.RUNNING:
                    entry.superseded |= reason == "superseded" and not entry.cancel_requested
                    entry.cancel_requested = True
                    self.store.publish(f"holder:{entry.holder}")
                else:
                    self.store.end(entry, JobState.CANCELLED, reason)
            case r.Pause():
                self.store.move(entry, JobState.PAUSED)
            case r.Resume():
                self._release(entry, JobState.AVAILABLE, entry.run_at)
            case r.Requeue():
                return self._requeue(entry, now)
            case r.Move(queue):
                if queue == entry.queue or self._key_taken(entry, queue, now):
                    return False
                self._change_queue(entry, queue, now)
                self.store.publish(f"queue:{queue}")
            case r.Reprioritise(priority):
                self.store.move(entry, entry.state, priority=priority)
            case r.Reschedule(delay, run_at):
                self.store.move(entry, entry.state, run_at=now + delay if run_at is None else run_at)
                if entry.state is JobState.AVAILABLE:
                    self.store.publish(f"queue:{entry.queue}")
            case r.Watch(inbox):
                self.store.watch(entry.id, inbox)
            case r.Hold(result_ttl):
                if entry.held_until <= now:
                    return False
                self.store.hold(entry, now + result_ttl)
            case r.Delete():
                self.store.remove(entry)
        return True

    def _requeue(self, entry: Entry, now: int) -> bool:
        if entry.key is not None:
            if self.store.key_owner(entry.queue, entry.key, now) not in (None, entry.id):
                return False
            self.store.take_key(entry, entry.queue, entry.key)
        entry.attempt = entry.lost = entry.held_until = 0
        entry.error = entry.result = entry.finished_at = entry.expires_at = None
        entry.reason = ""
        self._release(entry, JobState.AVAILABLE, now)
        return True

    # -- reading

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        with self.store.lock:
            now = self._begin(at)
            store = self.store
            entries = [
                store.by_key(name.queue, name.key) if isinstance(name, r.JobKey) else store.jobs.get(name)
                for name in names
            ]
            return [None if entry is None else store.record(entry, want, now) for entry in entries]

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        with self.store.lock:
            now = self._begin(at)
            named = sel.ids is not None or sel.keys is not None
            below = None if after is None else bytes.fromhex(after)
            pool = self._named(sel) if named else self.store.jobs.values()
            hits = (e for e in pool if (below is None or e.id < below) and _matches(e, sel, now))
            found = nlargest(limit + 1, hits, key=lambda e: e.id)
            records = [self.store.record(entry, frozenset(), now) for entry in found[:limit]]
            return r.Page(records, records[-1].id.hex() if len(found) > limit else None)

    async def usage(self) -> Usage:
        with self.store.lock:
            return Usage(self.store.sizes.total())

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        with self.store.lock:
            return stats(self.store, queues, self._begin(at))

    # -- sweep

    async def _ends(self, state: JobState, after: Mark | None, limit: int, at: r.Stamp) -> tuple[list[End], int]:
        with self.store.lock:
            now = self._begin(at)
            ends = (End(entry.finished_at or 0, entry.id, entry.size) for entry in self.store.ended[state].values())
            found = (end for end in ends if after is None or end[:2] > (after.ended_at, after.id))
            return nsmallest(limit, found), now - 1

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        with self.store.lock:
            return sweep(self.store, clause, self._begin(at))


def _matches(entry: Entry, sel: r.Selector, now: int) -> bool:
    return (
        (sel.queue is None or entry.queue == sel.queue)
        and (sel.tenant is None or entry.tenant == sel.tenant)
        and (sel.task is None or entry.task == sel.task)
        and (sel.states is None or entry.state in sel.states)
        and (sel.older_than is None or entry.enqueued_at <= now - sel.older_than)
        and (sel.reason is None or entry.reason == sel.reason)
        and (sel.above is None or entry.id > sel.above)
    )


def _asked_reason(entry: Entry) -> str:
    return "superseded" if entry.superseded else "cancelled"


def _keeps_key(last: Entry, row: r.Row) -> bool:
    """Whether the job, which is live or has failed, keeps its key from the row."""
    if last.state is JobState.FAILED:
        return row.hold_failed
    return last.state in LIVE and not (last.state is JobState.RUNNING and row.key_until is r.KeyUntil.STARTED)
