"""What is true of one queue, as far as everything that happened to it says."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from headrace.seam.policy import FOREVER, Policy, TenantLimit
from headrace.seam.records import JobId
from headrace.testing.referee.job import Job
from headrace.testing.referee.rules import Rules, Scope, opens_at
from headrace.types import JobState


class Start(Struct, frozen=True):
    """A job was started."""

    at: int
    tenant: str
    task: str

    def within(self, scope: Scope) -> bool:
        """Whether the rate of the scope counts it."""
        kind, name = scope
        return kind == "queue" or (self.tenant if kind == "tenant" else self.task) == name


class Book:
    """The jobs of a queue, its rules and pauses, and every start so far. Nothing is stored that can be counted."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.jobs: dict[JobId, Job] = {}
        self.starts: list[Start] = []
        self.reigns: list[tuple[int, Rules]] = [(0, Rules(Policy(queue=queue)))]
        """All rules so far, and how many starts there had been when each came into force."""
        self.pauses: dict[Scope, int] = {}
        self.called: set[JobId] = set()
        """The jobs that are called in their group."""
        self._running: dict[str, list[Job]] | None = None
        self._gates: dict[Scope, int] = {}
        """What was counted last, as long as it is valid."""

    # -- rules

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self.reigns[-1][1]

    def reign(self, rules: Rules) -> None:
        """New rules come into force."""
        self._gates.clear()
        self.reigns.append((len(self.starts), rules))
        for group in {job.group for job in self.jobs.values() if job.group is not None}:
            self.call(group)

    def limit(self, limit: TenantLimit) -> None:
        """A tenant gets a limit of its own, or loses it."""
        others = {name: known for name, known in self.rules.limits.items() if name != limit.tenant}
        none = limit.running is None and limit.rate is None
        self.reign(replace(self.rules, limits=others if none else others | {limit.tenant: limit}))

    def paused_until(self, scope: Scope) -> int:
        """When the pause of a scope ends, or ended."""
        return self.pauses.get(scope, 0)

    # -- what there is

    def running(self, tenant: str | None = None) -> list[Job]:
        """The running jobs, of one tenant if given."""
        if self._running is None:
            self._running = {}
            for job in self.jobs.values():
                if job.state is JobState.RUNNING:
                    self._running.setdefault(job.tenant, []).append(job)
        if tenant is not None:
            return self._running.get(tenant, [])
        return [job for jobs in self._running.values() for job in jobs]

    def holders(self, tenant: str) -> set[str]:
        """The holders that have jobs of the tenant."""
        return {job.holder for job in self.running(tenant)}

    def claimable(self, now: int) -> Iterator[Job]:
        """The jobs that a claim could take if there were no rules."""
        for job in self.jobs.values():
            if job.due(now) and not job.expired(now) and self.has_turn(job):
                yield job

    def has_turn(self, job: Job) -> bool:
        """Whether the job need not wait for others of its group."""
        return job.group is None or job.id in self.called

    # -- what hinders a job

    def opens_at(self, scope: Scope) -> int:
        """When the rate of a scope allows one more start."""
        if scope not in self._gates:
            self._gates[scope] = self._opening(scope)
        return self._gates[scope]

    def _opening(self, scope: Scope) -> int:
        """The starts since the rate that is in force came."""
        rate, since = self.rules.rate(scope), 0
        if rate is None:
            return 0
        for before, rules in self.reigns:
            if rules.rate(scope) != rate:
                since = FOREVER
            elif since == FOREVER:
                since = before
        return opens_at(rate, [start.at for start in self.starts[since:] if start.within(scope)])

    def queue_hindrance(self, now: int) -> str | None:
        """Why nothing of the queue may be started."""
        most = self.rules.policy.running
        if self.paused_until(("queue", "")) > now:
            return "the queue is paused"
        if most is not None and len(self.running()) >= most:
            return f"{most} jobs of the queue run"
        if self.opens_at(("queue", "")) > now:
            return "the queue's rate is spent"
        return None

    def hindrance(self, job: Job, holder: str, now: int) -> str | None:
        """Why the job may not be started by the holder, the queue as a whole aside."""
        for scope in (("tenant", job.tenant), ("task", job.task)):
            if self.paused_until(scope) > now:
                return f"its {scope[0]} is paused"
            if self.opens_at(scope) > now:
                return f"its {scope[0]}'s rate is spent"
        return self.lasting_hindrance(job, holder)

    def lasting_hindrance(self, job: Job, holder: str) -> str | None:
        """Why the job may not be started by the holder, no matter how much time passes."""
        cap = self.rules.cap(job.tenant)
        if cap is not None and len(self.running(job.tenant)) >= cap:
            return f"{cap} jobs of its tenant run"
        return "others have the tokens of its tenant" if self.kept_from(job.tenant, holder) else None

    def kept_from(self, tenant: str, holder: str) -> bool:
        """Whether as many other holders as may have jobs of the tenant."""
        most, holders = self.rules.policy.tenant_workers, self.holders(tenant)
        return most is not None and holder not in holders and len(holders) >= most

    # -- what happens

    def add(self, job: Job) -> None:
        """A new job."""
        self._running = None
        self.jobs[job.id] = job
        self.settle(job)

    def start(self, job: Job, holder: str, now: int, lease_for: int) -> None:
        """A job was leased."""
        self._running = None
        self._gates.clear()
        job.state, job.holder, job.lease_until = JobState.RUNNING, holder, now + lease_for
        job.epoch, job.begun = max(job.epoch + 1, now), True
        self.starts.append(Start(now, job.tenant, job.task))

    def put(self, job: Job, state: JobState, run_at: int | None = None) -> None:
        """The job is in another state, and due at another time if one is given."""
        self._running = None
        ran = job.state is JobState.RUNNING
        job.state, job.holder = state, ""
        job.run_at = job.run_at if run_at is None else run_at
        if state is not JobState.AVAILABLE or (ran and self.rules.policy.group_running > 1):
            self.called.discard(job.id)
        self.settle(job)

    def remove(self, job: Job) -> None:
        """The job is gone."""
        self._running = None
        del self.jobs[job.id]
        self.called.discard(job.id)
        self.settle(job)

    def settle(self, job: Job) -> None:
        """After a change of the job: call the first jobs of its group."""
        if job.group is not None:
            self.call(job.group)

    def call(self, group: str) -> None:
        """Call the first AVAILABLE jobs of a group. Where only one may be called, a job that was leased keeps its
        call."""
        turns = self.rules.policy.group_running
        jobs = sorted(
            (job for job in self.jobs.values() if job.group == group and job.state is JobState.AVAILABLE),
            key=lambda job: job.place,
        )
        called = [job for job in self.jobs.values() if job.group == group and job.id in self.called]
        kept = [job for job in called if job.state is JobState.RUNNING]
        if turns == 1 and not kept:
            kept = sorted((job for job in called if job.epoch), key=lambda job: job.place)[:1]
        self.called -= {job.id for job in called}
        free = max(0, turns - len(kept))
        self.called |= {job.id for job in [*kept, *[job for job in jobs if job not in kept][:free]]}
