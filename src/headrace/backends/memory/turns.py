"""A governed queue in memory: its tenants, their jobs, and who is awake."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice

from headrace.backends.memory.agenda import Agenda
from headrace.backends.memory.entry import Entry
from headrace.backends.memory.lane import PROMOTED_AT_ONCE, Lane, drop_job, rank
from headrace.backends.turns import Tenant, Turns
from headrace.seam.policy import FOREVER, Policy, TenantLimit
from headrace.seam.records import JobId

_WOKEN = 1_000
"""A claim wakes at most this many tenants, or one per job that it has room for; the next claim goes on."""


class MemoryTenant(Tenant):
    """A tenant and its jobs."""

    __slots__ = ("holders", "lanes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.since = 0
        self.awake = False
        self.full = False
        self.wake_at = None
        self.running = 0
        self.cap = None
        self.rate = None
        self.full_at = 0
        self.paused_until = 0
        self.lanes: defaultdict[str, Lane] = defaultdict(Lane)
        """By task."""
        self.holders: Counter[str] = Counter()

    def is_idle(self, now: int) -> bool:
        """Whether it has no jobs, and its rate is saved up."""
        return not (self.awake or self.lanes or self.running) and self.full_at <= now


class MemoryTurns(Turns):
    """The state behind one governed queue."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.tenants: dict[str, MemoryTenant] = {}
        self.limits: dict[str, TenantLimit] = {}
        self.paused_tenants: dict[str, int] = {}
        self.runs: dict[JobId, tuple[str, str]] = {}
        """Tenant and holder of each RUNNING job."""
        self._awake: Agenda[str, tuple[int, int]] = Agenda()
        """By (count, since)."""
        self._asleep: Agenda[str, int] = Agenda()
        """By wake_at."""

    # -- rules

    def rule(self, policy: Policy, find: Callable[[JobId], Entry]) -> None:
        """Another policy is in force. What was spent of a rate that it changes is forgotten; if it changes the order of
        jobs, all lanes are reordered."""
        before, self.policy = self.policy, policy
        if policy.rate != before.rate:
            self.full_at = 0
        for task in list(self.task_full_at):
            if policy.task_rates.get(task) != before.task_rates.get(task):
                del self.task_full_at[task]
        if policy.ageing != before.ageing:
            for lane in [lane for tenant in self.tenants.values() for lane in tenant.lanes.values()]:
                for job_id in lane.due.positions:
                    lane.due.put(job_id, self._rank(find(job_id)))

    def wake_all(self, now: int) -> None:
        """The rules have changed."""
        for name in self.tenants:
            self.wake_tenant(name, now)

    def wake_tenant(self, name: str, now: int) -> None:
        """What one tenant may do has changed."""
        if (tenant := self.tenants.get(name)) is not None:
            self._bind(tenant)
            tenant.full = False
            self._expect(tenant, now)

    def _bind(self, tenant: MemoryTenant) -> None:
        """Tell a tenant its rules. What it spent of another rate is forgotten."""
        own, rate = self.limits.get(tenant.name), tenant.rate
        tenant.cap = self.policy.tenant_running if own is None or own.running is None else own.running
        tenant.rate = self.policy.tenant_rate if own is None or own.rate is None else own.rate
        tenant.paused_until = self.paused_tenants.get(tenant.name, 0)
        if tenant.rate != rate:
            tenant.full_at = 0

    # -- jobs

    def put(self, entry: Entry, now: int) -> None:
        """Add a job, which is claimable once it is due."""
        tenant = self.tenant(entry.tenant)
        tenant.lanes[entry.task].put(entry, self._rank, now)
        self._expect(tenant, entry.run_at)

    def drop(self, entry: Entry, now: int) -> None:
        """Remove a job that is no longer claimable."""
        tenant = self.tenants.get(entry.tenant)
        if tenant is not None:
            drop_job(tenant.lanes, entry.task, entry.id)
            self.forget_idle(tenant, now)

    def start(self, entry: Entry, holder: str) -> None:
        """The job runs."""
        tenant = self.tenant(entry.tenant)
        self.running += 1
        tenant.running += 1
        tenant.holders[holder] += 1
        self.runs[entry.id] = entry.tenant, holder

    def stop(self, entry: Entry, now: int) -> bool:
        """The job has stopped running. Returns whether somebody may be waiting for that."""
        name, holder = self.runs.pop(entry.id)
        tenant = self.tenants[name]
        self.running -= 1
        tenant.running -= 1
        tenant.holders[holder] -= 1
        if not tenant.holders[holder]:
            del tenant.holders[holder]
        if tenant.full:
            tenant.full = False
            self._expect(tenant, now)
        self.forget_idle(tenant, now)
        return not (self.policy.running is self.policy.tenant_workers is tenant.cap is None)

    def tenant(self, name: str) -> MemoryTenant:
        """The tenant, which is added if it is unknown."""
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = MemoryTenant(name)
            self._bind(tenant)
        return tenant

    def forget_idle(self, tenant: MemoryTenant, now: int) -> None:
        """Forget a tenant that would come back just the same."""
        if tenant.count <= self.round and tenant.is_idle(now):
            self.forget(tenant.name)

    def idle(self, now: int) -> list[str]:
        """Tenants without jobs whose rate is saved up."""
        return [name for name, tenant in self.tenants.items() if tenant.is_idle(now)]

    def forget(self, name: str) -> None:
        """Forget the tenant; if it comes back, it is a new one."""
        del self.tenants[name]
        self._asleep.drop(name)

    def _rank(self, entry: Entry) -> int:
        step = self.policy.ageing
        return rank(entry) if step is None else entry.run_at + entry.priority * step

    # -- turns

    def begin(self, now: int) -> None:
        """A claim begins. Pauses of tasks that are over are forgotten."""
        self.paused_tasks = {task: until for task, until in self.paused_tasks.items() if until > now}
        super().begin(now)

    def wake(self, most: int, now: int) -> None:
        """Wake tenants whose time has come."""
        for name in islice(self._asleep.take(now), max(_WOKEN, most)):
            tenant = self.tenants[name]
            assert tenant.wake_at is not None
            tenant.awake, tenant.since, tenant.wake_at = True, tenant.wake_at, None
            tenant.count = max(tenant.count, self.round)
            self.put_back(tenant)

    def next_tenant(self) -> MemoryTenant | None:
        """Take the first awake tenant out of the order; the caller puts it back."""
        name = self._awake.pop()
        return None if name is None else self.tenants[name]

    def may_have(self, holder: str, tenant: MemoryTenant) -> bool:
        """Whether the holder may have jobs of the tenant."""
        most = self.policy.tenant_workers
        return most is None or holder in tenant.holders or len(tenant.holders) < most

    def put_back(self, tenant: MemoryTenant) -> None:
        """Put a tenant where it belongs: among those that are awake, or those that sleep for a time."""
        if tenant.awake:
            self._awake.put(tenant.name, (tenant.count, tenant.since))
        elif tenant.wake_at is not None:
            self._asleep.put(tenant.name, tenant.wake_at)

    def _expect(self, tenant: MemoryTenant, instant: int) -> None:
        """The tenant may have a job to give from then on."""
        if not (tenant.awake or tenant.full) and (tenant.wake_at is None or instant < tenant.wake_at):
            tenant.wake_at = instant
            self._asleep.put(tenant.name, instant)

    def eligible(self, tenant: MemoryTenant, find: Callable[[JobId], Entry], now: int) -> Iterator[Entry]:
        """The tenant's due jobs in order, without tasks that may not run now. The caller records a job as taken before
        it asks for the next, and puts back a job that it does not take."""
        lanes = tenant.lanes
        heads: list[tuple[tuple[int, JobId], str]] = []
        left = PROMOTED_AT_ONCE

        def push(task: str) -> None:
            lane = lanes.get(task)
            if lane is not None and (first := lane.due.head()) is not None:
                heappush(heads, (first, task))

        for task, lane in lanes.items():
            left -= lane.promote(left, find, self._rank, now)
            push(task)
        while heads:
            _, task = heappop(heads)
            if task in self.closed or task not in lanes:
                continue
            entry = lanes[task].draw(find, now)
            if entry is not None:
                yield entry
            push(task)

    def wakes_at(self, tenant: MemoryTenant, now: int) -> int:
        """When the tenant's first job that is left is due and its task may run."""
        instants = [
            max(first, self.closed.get(task, 0))
            for task, lane in tenant.lanes.items()
            for first in (now if lane.due.positions else None, lane.delayed.first())
            if first is not None
        ]
        return min(instants, default=FOREVER)

    def first_wakes_at(self) -> int | None:
        """When the first sleeping tenant wakes."""
        return self._asleep.first()
