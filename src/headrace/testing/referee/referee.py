"""The judge of one governed queue."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headrace.seam.policy import FOREVER, TENANT_BATCH, Policy, QueuePause, TenantLimit
from headrace.seam.records import (
    Cancel,
    Change,
    Claim,
    Claimed,
    Delete,
    Inserted,
    InsertStatus,
    JobId,
    Leased,
    Pause,
    Reaped,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Room,
    Row,
    Settlement,
)
from headrace.testing.referee.book import Book
from headrace.testing.referee.job import Job
from headrace.testing.referee.laws import Law, Objection, stop
from headrace.testing.referee.leads import Leads
from headrace.types import JobState


class Referee:
    """Sees every operation on a queue and its answer, in their order, and objects to what breaks a law: with an
    ``AssertionError``, unless it is given another way."""

    def __init__(self, queue: str, objection: Objection = stop) -> None:
        self.book = Book(queue)
        self.governed = False
        """Whether tenants take turns."""
        self._object = objection
        self._leads = Leads()
        self._chunk = 0

    # -- what changes the rules

    def save(self, policy: Policy) -> None:
        """A policy was stored."""
        self._chunk = max(self._chunk, policy.tenant_batch or TENANT_BATCH)
        self.governed = self.governed or policy.governs
        self.book.reign(replace(self.book.rules, policy=policy))

    def limit(self, limit: TenantLimit) -> None:
        """A tenant's limit was stored."""
        self.governed = True
        self.book.limit(limit)

    def pause(self, pause: QueuePause, now: int) -> None:
        """The queue, a tenant or a task was paused or resumed."""
        scope = ("queue", "")
        if pause.tenant is not None or pause.task is not None:
            self.governed = True
            scope = ("task", pause.task or "") if pause.tenant is None else ("tenant", pause.tenant)
        self.book.pauses[scope] = 0 if not pause.paused else FOREVER if pause.lasts is None else now + pause.lasts

    # -- what changes jobs

    def full(self) -> Room | None:
        """The limit that an insert is refused with, while as many jobs wait as may."""
        depth = self.book.rules.policy.depth
        waiting = 0 if depth is None else sum(job.waits for job in self.book.jobs.values())
        return Room(self.book.queue, depth, waiting) if depth is not None and waiting >= depth else None

    def insert(self, rows: Sequence[Row], answers: Sequence[Inserted], now: int) -> None:
        """Depth: a row is refused exactly when as many jobs wait as may."""
        for row, answer in zip(rows, answers, strict=True):
            known, full = row.id in self.book.jobs, self.full()
            expected = InsertStatus.SAME if known else InsertStatus.FULL if full else InsertStatus.NEW
            if answer.status is not expected:
                self._object(Law.DEPTH, row.id, f"an insert was answered {answer.status}, which should be {expected}")
            elif expected is InsertStatus.FULL and answer.room != full:
                self._object(Law.DEPTH, row.id, f"a refusal named {answer.room}, which should be {full}")
            if answer.status is InsertStatus.NEW:
                self.book.add(Job(row, now))

    def finish(self, batch: Sequence[Settlement], answers: Sequence[JobState | None], now: int) -> None:
        """Leases ended."""
        for settlement, answer in zip(batch, answers, strict=True):
            job = self.book.jobs.get(settlement.id)
            held = job is not None and job.state is JobState.RUNNING
            if job is None or not held or (job.epoch, job.holder) != (settlement.epoch, settlement.holder):
                if answer is not None:
                    self._object(Law.LEASES, settlement.id, f"a settlement without a lease was answered {answer}")
            elif answer is None:
                self._object(Law.LEASES, job.id, f"the holder of {job} was fenced off")
            else:
                job.lost = job.lost if settlement.keep_lost else 0
                job.begun = not settlement.unbegun
                delayed = None if settlement.delay is None else now + settlement.delay
                self.book.put(job, answer, delayed if settlement.run_at is None else settlement.run_at)
        for settlement, answer in zip(batch, answers, strict=True):
            for row in settlement.spawn if answer is not None else ():
                if row.id not in self.book.jobs:
                    self.book.add(Job(row, now))

    def reap(self, answers: Sequence[Reaped], now: int) -> None:
        """Leases were taken back, without a spread, and expired jobs cancelled."""
        for answer in answers:
            if (job := self.book.jobs.get(answer.id)) is not None:
                lawful = job.lease_until <= now if job.state is JobState.RUNNING else job.due(now) and job.expired(now)
                if not lawful:
                    self._object(Law.LEASES, job.id, f"{job} was reaped")
                job.lost = answer.lost
                self.book.put(job, answer.state, now)

    def alter(self, ids: Sequence[JobId], change: Change, now: int) -> None:
        """Jobs were changed from outside."""
        for job in [self.book.jobs[job_id] for job_id in ids if job_id in self.book.jobs]:
            match change:
                case Cancel() if job.waits:
                    self.book.put(job, JobState.CANCELLED)
                case Pause() if job.state is JobState.AVAILABLE:
                    self.book.put(job, JobState.PAUSED)
                case Resume() if job.state is JobState.PAUSED:
                    self.book.put(job, JobState.AVAILABLE)
                case Requeue() if job.state.terminal:
                    job.expires_at, job.lost = None, 0
                    self.book.put(job, JobState.AVAILABLE, now)
                case Reprioritise(priority) if job.waits:
                    job.priority = priority
                case Reschedule(delay, run_at) if job.waits:
                    self.book.put(job, job.state, now + delay if run_at is None else run_at)
                case Delete() if job.state is not JobState.RUNNING:
                    self.book.remove(job)

    # -- claim

    def claim(self, req: Claim, claimed: Claimed, now: int) -> set[JobId]:
        """The jobs that a claim brought were the ones that had to be given out, in their order. Returns jobs that need
        not be among them: they were called only because another job of their group expired in this claim."""
        late = self._expire(claimed.expired, now)
        if self.governed and req.limit and self.book.queue in req.queues and self.book.queue_hindrance(now) is None:
            self._keep_off(req.holder)
            self._leads.contend(self._ready(req, now, late))
        for leased in claimed.jobs:
            if leased.queue == self.book.queue:
                self._take(leased, req, now, late)
        if self.governed and self.book.queue in req.queues and len(claimed.jobs) < req.limit:
            self._check_nothing_left(req, now, late)
            self._check_next_in(req, claimed.next_in, now)
        return late

    def _take(self, leased: Leased, req: Claim, now: int, late: set[JobId]) -> None:
        job = self.book.jobs.get(leased.id)
        if job is None:
            self._object(Law.LEASES, leased.id, f"a job that nobody knows: {leased!r}")
            return
        given = leased.epoch, leased.begun, leased.lost, leased.run_at
        if given != (max(job.epoch + 1, now), job.begun, job.lost, job.run_at):
            self._object(Law.LEASES, job.id, f"{job} was given out as {leased!r}")
        self._check_turn(job, req, now)
        if not self.governed:
            self.book.start(job, req.holder, now, req.lease_for)
            return
        self._check_allowed(job, req, now)
        self._check_order(job, req, now, late)
        left_behind = self._leads.take(job.tenant, self._ready(req, now, late), 2 * self._chunk)
        if left_behind is not None:
            self._object(Law.TURNS, job.id, f"{job} was given out, and tenant {left_behind!r} is far behind")
        self.book.start(job, req.holder, now, req.lease_for)
        self._leads.contend(self._ready(req, now, late))

    def _expire(self, expired: Sequence[Reaped], now: int) -> set[JobId]:
        before = set(self.book.called)
        for answer in expired:
            if (job := self.book.jobs.get(answer.id)) is not None:
                if not (job.due(now) and job.expired(now)):
                    self._object(Law.ORDER, job.id, f"{job} was cancelled as expired, and has not")
                self.book.put(job, JobState.CANCELLED)
        return self.book.called - before

    def _check_turn(self, job: Job, req: Claim, now: int) -> None:
        if not job.due(now) or job.expired(now):
            self._object(Law.ORDER, job.id, f"{job} was given out {now - job.run_at} after it was due, or has expired")
        if not self.book.has_turn(job):
            self._object(Law.GROUPS, job.id, f"{job} was given out before it was called")
        if job.group is not None:
            beside = [other for other in self.book.running() if other.group == job.group]
            if len(beside) >= self.book.rules.policy.group_running:
                self._object(Law.GROUPS, job.id, f"{job} runs beside {beside}")

    def _check_allowed(self, job: Job, req: Claim, now: int) -> None:
        if self._suspect(job, req):
            self._object(Law.ORDER, job.id, f"{job} was given out in spite of its losses")
        hindrance = self.book.queue_hindrance(now) or self.book.hindrance(job, req.holder, now)
        if hindrance is not None:
            self._object(Law.LIMITS, job.id, f"{job} was given out, but {hindrance}")

    def _allowed(self, req: Claim, now: int) -> list[Job]:
        """The jobs that the holder could be given now, if the queue as a whole gave out any."""
        return [
            job
            for job in self.book.claimable(now)
            if not self._suspect(job, req) and self.book.hindrance(job, req.holder, now) is None
        ]

    def _ready(self, req: Claim, now: int, late: set[JobId]) -> set[str]:
        return {job.tenant for job in self._allowed(req, now) if job.id not in late}

    def _check_order(self, job: Job, req: Claim, now: int, late: set[JobId]) -> None:
        """Within a tenant the first allowed job comes first."""
        others = [other for other in self._allowed(req, now) if other.tenant == job.tenant and other.id not in late]
        first = min(others, key=self._rank, default=job)
        if self._rank(first) < self._rank(job):
            self._object(Law.ORDER, job.id, f"{job} was given out before {first}")

    def _rank(self, job: Job) -> tuple[int, int, JobId]:
        step = self.book.rules.policy.ageing
        if step is None:
            return job.priority, job.run_at, job.id
        return job.run_at + job.priority * step, 0, job.id

    def _keep_off(self, holder: str) -> None:
        for tenant in self._tenants():
            if self.book.kept_from(tenant, holder):
                self._leads.keep_off(tenant)

    def _tenants(self) -> set[str]:
        return {job.tenant for job in self.book.jobs.values()}

    def _check_nothing_left(self, req: Claim, now: int, late: set[JobId]) -> None:
        """A short claim leaves nothing behind that it could have brought."""
        if self.book.queue_hindrance(now) is not None:
            return
        left = [job for job in self._allowed(req, now) if job.id not in late]
        if left:
            self._object(Law.TURNS, left[0].id, f"a claim for {req.limit} came back short, and left {left[0]}")
        self._leads.all_asleep({tenant for tenant in self._tenants() if self.book.kept_from(tenant, req.holder)})

    def _check_next_in(self, req: Claim, next_in: int | None, now: int) -> None:
        """A worker that sleeps for ``next_in`` misses nothing that comes by the mere passing of time."""
        most = self.book.rules.policy.running
        if most is not None and len(self.book.running()) >= most:
            return
        for job in self.book.jobs.values():
            if job.state is JobState.AVAILABLE and self.book.has_turn(job) and not self._suspect(job, req):
                scopes = (("queue", ""), ("tenant", job.tenant), ("task", job.task))
                gates = [gate for s in scopes for gate in (self.book.paused_until(s), self.book.opens_at(s))]
                first = max(now, job.run_at, *gates)
                if self.book.lasting_hindrance(job, req.holder) or job.expired(first) or first >= FOREVER:
                    continue
                if next_in is None or now + next_in > first:
                    told = f"{job} may be had {first - now} from now, and next_in is {next_in}"
                    self._object(Law.TURNS, job.id, told)

    def _suspect(self, job: Job, req: Claim) -> bool:
        return req.lost_below is not None and job.lost >= req.lost_below
