"""What the memory backend keeps: the jobs by state, and the indexes over them."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from headrace.backends.mailbox import Mailbox
from headrace.backends.memory.agenda import Agenda
from headrace.backends.memory.dead_letters import DeadLetters
from headrace.backends.memory.entry import Entry
from headrace.backends.memory.events import MemoryEvents
from headrace.backends.memory.fleet import Absence, Listed
from headrace.backends.memory.groups import Group
from headrace.backends.memory.journal import new_journal
from headrace.backends.memory.lane import PROMOTED_AT_ONCE, Lane, drop_job, rank
from headrace.backends.memory.ledger import Ledger
from headrace.backends.memory.leg import Leg
from headrace.backends.memory.removals import MemoryRemovals
from headrace.backends.memory.sheets import TrackerSheets
from headrace.backends.memory.turns import MemoryTurns
from headrace.seam.documents import Document
from headrace.seam.parts import Part
from headrace.seam.policy import OPERATIONS, STORE, Policy
from headrace.seam.records import WATCHERS, Hint, JobId, Record, Room, carried_by_name
from headrace.types import JobState

_AVAILABLE, _RUNNING = JobState.AVAILABLE, JobState.RUNNING
_WAITING = (JobState.AVAILABLE, JobState.PAUSED)
LIVE = (JobState.AVAILABLE, JobState.RUNNING, JobState.PAUSED)


class MemoryStore:
    """The shared state behind every handle on one memory store; its lock is held during each operation."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.events = MemoryEvents()
        self.journal = new_journal()
        self.parts: dict[JobId, tuple[int, list[Part]]] = {}
        """By job: until when its parts are kept, and they; the job that sent last comes last."""
        self.jobs: dict[JobId, Entry] = {}
        self.running: dict[JobId, Entry] = {}
        self.ended: dict[JobState, dict[JobId, Entry]] = {
            JobState.COMPLETED: {},
            JobState.CANCELLED: {},
            JobState.FAILED: {},
        }
        self.dead = DeadLetters()
        self.keys: dict[tuple[str, str], JobId] = {}
        self.removals = MemoryRemovals()
        self.outlived: dict[tuple[str, str], tuple[JobId, int]] = {}
        """Keys whose job has no record any more: the job that had them, and until when they are held."""
        self.inboxes: dict[JobId, dict[str, None]] = {}
        """The inboxes that wait for the end of a job, the latest last."""
        self.now = 0
        """The instant of the operation under way."""
        self.paused_queues: dict[str, int] = {}
        """Until when claims from them are stopped."""
        self.policies: dict[str, Policy] = {}
        self.turns: dict[str, MemoryTurns] = {}
        """Of the governed queues."""
        self.groups: dict[tuple[str, str], Group] = {}
        self.workers: dict[str, Listed] = {}
        self.absence = Absence()
        self.chosen: dict[str, tuple[str, int]] = {}
        """By queue: the chosen holder, which makes room for jobs on their last chance, and until when."""
        self.counts: Counter[tuple[str, JobState]] = Counter()
        self._waiting = 0
        """Of all queues."""
        self.sizes: Counter[JobState] = Counter()
        """Bytes of jobs: of those that have not ended, as they were when they came."""
        self._ready: defaultdict[str, Lane] = defaultdict(Lane)
        """AVAILABLE jobs by queue, priority and ``run_at``."""
        self._expiring: Agenda[JobId, int] = Agenda()
        self._holding: Agenda[JobId, int] = Agenda()
        """Kept results by the end of their ttl."""
        self.ledger = Ledger()
        self.documents: dict[str, Document] = {}
        self.trackers: dict[str, TrackerSheets] = {}
        self.legs: dict[str, Leg] = {}
        self._mailboxes: defaultdict[str, set[Mailbox]] = defaultdict(set)

    # -- jobs

    def add(self, entry: Entry) -> None:
        """A new job, AVAILABLE."""
        entry.size = entry.measure()
        self.jobs[entry.id] = entry
        if entry.key is not None:
            self.take_key(entry, entry.queue, entry.key)
        if entry.expires_at is not None:
            self._expiring.put(entry.id, entry.expires_at)
        self._enter(entry)
        if entry.group is not None:
            self.call(entry.queue, entry.group)

    def move(
        self, entry: Entry, state: JobState, *,
        queue: str | None = None, priority: int | None = None, run_at: int | None = None,
    ) -> None:  # fmt: skip
        """Move the job from one state to another."""
        before = entry.queue
        if run_at is not None and entry.group is not None:
            self._leave_line(entry)
        if entry.group is not None and not self._keeps_call(entry, state, queue):
            self._leave_group(entry)
        self._leave(entry)
        entry.state = state
        if queue is not None:
            entry.queue = queue
        if priority is not None:
            entry.priority = priority
        if run_at is not None:
            entry.run_at = run_at
        self._enter(entry)
        if entry.group is not None:
            self.call(before, entry.group)
            self.call(entry.queue, entry.group)

    def end(self, entry: Entry, state: JobState, reason: str) -> None:
        """End the job, and tell those that wait for it."""
        entry.finished_at = self.now
        entry.reason = reason
        entry.cancel_requested = entry.superseded = False
        entry.holder = ""
        self.move(entry, state)
        for inbox in self.inboxes.pop(entry.id, ()):
            self.publish(f"inbox:{inbox}", entry.id)

    def expire_all(self, entries: Sequence[Entry]) -> None:
        """Cancel jobs that have expired. All leave their groups first: none of them is called when another ends."""
        for entry in entries:
            if entry.group is not None:
                self._leave_line(entry)
        for entry in entries:
            self.end(entry, JobState.CANCELLED, "expired")

    def sweep_away(self, entry: Entry, now: int) -> None:
        """Forget an ended job; its key stays as long as it is held."""
        place = entry.queue, entry.key or ""
        held = entry.state is JobState.COMPLETED and entry.held_until > now and self.keys.get(place) == entry.id
        self.remove(entry)
        if held:
            self.outlived[place] = entry.id, entry.held_until

    def remove(self, entry: Entry) -> None:
        """Forget the job, its key and its waiters."""
        if entry.group is not None:
            self._leave_group(entry)
        self._leave(entry)
        if entry.group is not None:
            self.call(entry.queue, entry.group)
        self._expiring.drop(entry.id)
        del self.jobs[entry.id]
        self.drop_key(entry)
        self.inboxes.pop(entry.id, None)

    def drop_key(self, entry: Entry) -> None:
        """The key no longer leads to this job."""
        if entry.key is not None and self.keys.get((entry.queue, entry.key)) == entry.id:
            del self.keys[entry.queue, entry.key]

    def watch(self, job_id: JobId, inbox: str) -> None:
        """The inbox waits for the end of the job; the oldest one makes room if there are too many."""
        inboxes = self.inboxes.setdefault(job_id, {})
        inboxes.pop(inbox, None)
        inboxes[inbox] = None
        if len(inboxes) > WATCHERS:
            del inboxes[next(iter(inboxes))]

    def take_key(self, entry: Entry, queue: str, key: str) -> None:
        """Let the key, which is free, lead to this job."""
        self.keys[queue, key] = entry.id
        self.outlived.pop((queue, key), None)

    def key_owner(self, queue: str, key: str, now: int) -> JobId | None:
        """The job that keeps others from taking the key: live, or completed and still held, recorded or not."""
        entry = self.by_key(queue, key)
        if entry is None:
            return self.outliving(queue, key, now)
        held = entry.state is JobState.COMPLETED and entry.held_until > now
        return entry.id if held or entry.state in LIVE else None

    def outliving(self, queue: str, key: str, now: int) -> JobId | None:
        """The job that holds the key without a record."""
        job_id, held_until = self.outlived.get((queue, key), (None, 0))
        return job_id if held_until > now else None

    def by_key(self, queue: str, key: str) -> Entry | None:
        """The job that last took the key."""
        job_id = self.keys.get((queue, key))
        return None if job_id is None else self.jobs[job_id]

    def _enter(self, entry: Entry) -> None:
        state = entry.state
        self.counts[entry.queue, state] += 1
        if state is _AVAILABLE:
            self._waiting += 1
            if entry.group is None or self._stays_called(entry):
                self.put_back(entry)
        elif state is _RUNNING:
            self.running[entry.id] = entry
            if entry.queue in self.turns:
                self.turns[entry.queue].start(entry, entry.holder)
        elif state in self.ended:
            self.ended[state][entry.id] = entry
            entry.size = entry.measure()
            if state is JobState.FAILED:
                self.dead.add(entry)
            if entry.expires_at is not None:
                self._expiring.drop(entry.id)
            if entry.result is not None:
                self._holding.put(entry.id, entry.held_until)
        else:
            self._waiting += 1
        self.sizes[state] += entry.size

    def _leave(self, entry: Entry) -> None:
        state = entry.state
        place = entry.queue, state
        self.sizes[state] -= entry.size
        left = self.counts[place] - 1
        if left:
            self.counts[place] = left
        else:
            self.counts.pop(place, None)
        if state is _AVAILABLE:
            self._waiting -= 1
            self._not_ready(entry)
        elif state is _RUNNING:
            del self.running[entry.id]
            entry.progress = None
            if entry.queue in self.turns and self.turns[entry.queue].stop(entry, self.now):
                self.publish(f"queue:{entry.queue}")
        elif state in self.ended:
            del self.ended[state][entry.id]
            if state is JobState.FAILED:
                self.dead.remove(entry)
            self._holding.drop(entry.id)
        else:
            self._waiting -= 1

    # -- groups

    def _group_running(self, queue: str) -> int:
        policy = self.policies.get(queue)
        return 1 if policy is None else policy.group_running

    def _keeps_call(self, entry: Entry, state: JobState, queue: str | None) -> bool:
        if queue not in (None, entry.queue) or state not in (JobState.AVAILABLE, JobState.RUNNING):
            return False
        return state is JobState.RUNNING or entry.state is JobState.AVAILABLE or self._group_running(entry.queue) == 1

    def _leave_group(self, entry: Entry) -> None:
        group = self.groups.get((entry.queue, entry.group or ""))
        if group is not None:
            group.leave(entry)

    def _leave_line(self, entry: Entry) -> None:
        group = self.groups.get((entry.queue, entry.group or ""))
        if group is not None and entry.id not in group.called:
            group.leave(entry)

    def _stays_called(self, entry: Entry) -> bool:
        """Whether a job of a group that has become AVAILABLE is called already; if not, it gets in line."""
        assert entry.group is not None
        group = self.groups.setdefault((entry.queue, entry.group), Group())
        group.enter(entry)
        return entry.id in group.called

    def call(self, queue: str, name: str) -> None:
        """Call the first jobs of a group."""
        group, most = self.groups.get((queue, name)), self._group_running(queue)
        if group is None:
            return
        for entry in group.send_back(most):
            self._not_ready(entry)
        while (job_id := group.next(most)) is not None:
            entry = group.called[job_id] = self.jobs[job_id]
            self.put_back(entry)
            self.publish(f"queue:{queue}")
        if not (group.called or group.line):
            del self.groups[queue, name]

    # -- policies

    def govern(self, queue: str) -> MemoryTurns:
        """Let the tenants of a queue take turns from now on."""
        turns = self.turns.get(queue)
        if turns is None:
            lane = self._ready.pop(queue, Lane())
            waiting = [self.jobs[job_id] for job_id in (*lane.due.positions, *lane.delayed.positions)]
            turns = self.turns[queue] = MemoryTurns(self.policies.get(queue) or Policy(queue=queue))
            for entry in waiting:
                turns.put(entry, self.now)
            for entry in self.running.values():
                if entry.queue == queue:
                    turns.start(entry, entry.holder)
        return turns

    def paused(self, queue: str, now: int) -> bool:
        return self.paused_queues.get(queue, 0) > now

    def full(self, queue: str) -> Room | None:
        """The limit that lets no further job wait: of all queues together, or of this one."""
        waiting = sum(self.counts.get((queue, state), 0) for state in _WAITING)
        whole = self._full(STORE, self._waiting)
        return self._full(queue, waiting) if whole is None or (whole.depth and queue == OPERATIONS) else whole

    def _full(self, name: str, waiting: int) -> Room | None:
        policy = self.policies.get(name)
        if policy is None or policy.depth is None or waiting < policy.depth:
            return None
        return Room(name, policy.depth, waiting)

    # -- indexes

    def promote(self, queues: Iterable[str], now: int) -> None:
        """Make due jobs of queues that are not governed claimable, a bounded number."""
        lanes = [self._ready[queue] for queue in queues if queue in self._ready]
        due = [(first, number) for number, lane in enumerate(lanes) if (first := lane.delayed.first()) is not None]
        left = PROMOTED_AT_ONCE
        for first, number in sorted(due):
            if first > now or left <= 0:
                break
            left -= lanes[number].promote(left, self.jobs.__getitem__, rank, now)

    def first(self, queue: str) -> tuple[int, JobId] | None:
        """Rank and id of the first claimable job of a queue that is not governed."""
        lane = self._ready.get(queue)
        return None if lane is None else lane.due.head()

    def draw(self, queue: str, now: int) -> Entry | None:
        """Remove from the index, and return, the first due job of a queue by (priority, run_at, id)."""
        lane = self._ready.get(queue)
        return None if lane is None else lane.draw(self.jobs.__getitem__, now)

    def put_back(self, entry: Entry) -> None:
        """Add a job that is claimable once it is due, or that was returned and not taken."""
        if entry.queue in self.turns:
            self.turns[entry.queue].put(entry, self.now)
            return
        self._ready[entry.queue].put(entry, rank, self.now)

    def _not_ready(self, entry: Entry) -> None:
        if entry.queue in self.turns:
            self.turns[entry.queue].drop(entry, self.now)
        else:
            drop_job(self._ready, entry.queue, entry.id)

    def next_due(self, queue: str) -> int | None:
        """When a claim may next find something in a queue that is not governed."""
        lane = self._ready.get(queue)
        return None if lane is None else lane.next_due(self.jobs.__getitem__)

    def oldest(self, queue: str) -> int | None:
        """The earliest ``run_at`` of the queue's available jobs."""
        firsts = (lane.oldest(self.jobs.__getitem__) for lane in self._lanes(queue))
        return min((run_at for run_at in firsts if run_at is not None), default=None)

    def scheduled(self, queue: str, now: int) -> int:
        """How many available jobs are not due yet."""
        return sum(lane.delayed.count_after(now) for lane in self._lanes(queue))

    def next_after(self, queue: str, now: int) -> int | None:
        """When the first of them is due."""
        firsts = (lane.delayed.first_after(now) for lane in self._lanes(queue))
        return min((run_at for run_at in firsts if run_at is not None), default=None)

    def _lanes(self, queue: str) -> Iterator[Lane]:
        if queue in self.turns:
            for tenant in self.turns[queue].tenants.values():
                yield from tenant.lanes.values()
        elif queue in self._ready:
            yield self._ready[queue]

    def expired(self, now: int, limit: int) -> list[Entry]:
        """Due jobs whose expiry has passed, at most ``limit``; they leave this index."""
        found: list[Entry] = []
        others: list[tuple[JobId, int]] = []
        ids = self._expiring.take(now)
        while len(found) < limit and (job_id := next(ids, None)) is not None:
            entry = self.jobs[job_id]
            if entry.state is JobState.AVAILABLE and entry.run_at <= now:
                found.append(entry)
            elif entry.expires_at is not None:
                others.append((job_id, entry.expires_at))
        for job_id, instant in others:
            self._expiring.put(job_id, instant)
        return found

    def expire(self, entry: Entry, instant: int | None) -> None:
        """Let the job, which waits, expire at another instant, or not at all."""
        entry.expires_at = instant
        if instant is None:
            self._expiring.drop(entry.id)
        else:
            self._expiring.put(entry.id, instant)

    def results_past(self, now: int, limit: int) -> list[Entry]:
        """The first jobs whose kept result is past its ttl."""
        return [self.jobs[job_id] for job_id in self._holding.peek(now, limit)]

    def drop_result(self, entry: Entry) -> None:
        """Drop the result of an ended job; its record stays."""
        freed = len(entry.result or b"")
        self.sizes[entry.state] -= freed
        entry.size -= freed
        entry.result = None
        self._holding.drop(entry.id)

    def hold(self, entry: Entry, until: int) -> None:
        """Hold the key and the result, if there is one, of a completed job until then."""
        entry.held_until = until
        if entry.result is not None:
            self._holding.put(entry.id, until)

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
            id=entry.id, queue=entry.queue, task=entry.task, state=entry.state, tenant=entry.tenant, key=entry.key,
            priority=entry.priority, run_at=entry.run_at, enqueued_at=entry.enqueued_at, expires_at=entry.expires_at,
            finished_at=entry.finished_at, epoch=entry.epoch, attempt=entry.attempt, lost=entry.lost,
            headers=entry.headers, worker=listed[0].worker if listed and listed[1] > now else "",
            lease_until=entry.lease_until if running else None, cancel_requested=running and entry.cancel_requested,
            reason=entry.reason, cells={name: cell for name, cell in entry.cells.items() if name in want},
            error=entry.error if "error" in want else None,
            result=entry.result if held and "result" in want else None, held=held, group=entry.group,
            progress=entry.progress,
            **carried_by_name(entry.carried),
        )  # fmt: skip
