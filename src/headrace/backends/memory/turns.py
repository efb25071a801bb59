"""A governed queue: whose turn it is, and what that tenant may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from headrace.backends.memory.entry import Entry
from headrace.backends.memory.lane import PROMOTED_AT_ONCE, Lane, rank
from headrace.seam.policy import FOREVER, TENANT_BATCH, Policy, Rate, TenantLimit
from headrace.seam.records import JobId


class Bucket:
    """A rate under way."""

    __slots__ = ("full_at", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.full_at = 0


class Tenant:
    """One tenant's jobs, and where it stands among the others."""

    __slots__ = ("awake", "count", "full", "holders", "lanes", "running", "since", "wake_at")

    def __init__(self) -> None:
        self.count = 0
        self.awake = False
        self.full = False
        self.since = 0
        self.wake_at: int | None = None
        self.lanes: dict[str, Lane] = {}
        """By task."""
        self.running = 0
        self.holders: Counter[str] = Counter()


class TenantHeap:
    """Tenants in an order. When a tenant moves, its old entry goes stale; when too many are stale, they are removed."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []

    def put(self, place: tuple[int, int, str], most: int, holds: Callable[[tuple[int, int, str]], bool]) -> None:
        """Add the entry of a tenant; there are ``most`` tenants in all."""
        heappush(self._heap, place)
        if len(self._heap) > 2 * most + 16:
            self._heap = sorted({one for one in self._heap if holds(one)})

    def first(self, holds: Callable[[tuple[int, int, str]], bool]) -> tuple[int, int, str] | None:
        """The first entry that is not stale."""
        while self._heap and not holds(self._heap[0]):
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> tuple[int, int, str]:
        return heappop(self._heap)


class Turns:
    """The state behind one governed queue."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.round = 0
        self.running: dict[JobId, tuple[str, str]] = {}
        """Tenant and holder of each RUNNING job."""
        self.tenants: dict[str, Tenant] = {}
        self.limits: dict[str, TenantLimit] = {}
        self.paused_tenants: dict[str, int] = {}
        self.paused_tasks: dict[str, int] = {}
        self._awake = TenantHeap()
        """By (count, since, name)."""
        self._asleep = TenantHeap()
        """By (wake_at, 0, name)."""
        self._buckets: dict[tuple[str, str], Bucket] = {}

    # -- rules

    def bucket(self, scope: str, name: str = "") -> Bucket | None:
        """The rate of the ``queue``, of a ``tenant`` or of a ``task``."""
        rate = self._rate(scope, name)
        if rate is None:
            self._buckets.pop((scope, name), None)
            return None
        bucket = self._buckets.get((scope, name))
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[scope, name] = Bucket(rate)
        return bucket

    def _rate(self, scope: str, name: str) -> Rate | None:
        if scope == "queue":
            return self.policy.rate
        if scope == "task":
            return self.policy.task_rates.get(name)
        own = self.limits.get(name)
        return own.rate if own is not None and own.rate is not None else self.policy.tenant_rate

    def cap(self, tenant: str) -> int | None:
        """How many jobs of the tenant may run."""
        own = self.limits.get(tenant)
        return own.running if own is not None and own.running is not None else self.policy.tenant_running

    def free(self, scope: str, name: str, now: int) -> int | None:
        """How many jobs the rate of a scope allows; None: any number."""
        bucket = self.bucket(scope, name)
        return None if bucket is None else bucket.rate.allows(bucket.full_at, now)

    def opens_at(self, scope: str, name: str, now: int) -> int | None:
        """When the rate of a scope opens, if it is shut."""
        bucket = self.bucket(scope, name)
        if bucket is None or bucket.rate.allows(bucket.full_at, now):
            return None
        return bucket.rate.opens_at(bucket.full_at)

    def closed_until(self, task: str, now: int) -> int:
        """When jobs of a task may be started: 0 if that is now."""
        paused, shut = self.paused_tasks.get(task, 0), self.opens_at("task", task, now)
        return max(paused if paused > now else 0, shut or 0)

    def wake_all(self, now: int) -> None:
        """The rules have changed. A rate that is no longer in force is forgotten."""
        self._buckets = {scope: kept for scope, kept in self._buckets.items() if kept.rate == self._rate(*scope)}
        for tenant in self.tenants.values():
            tenant.full = False
        for name in self.tenants:
            self._expect(name, now)

    def wake_tenant(self, name: str, now: int) -> None:
        """What one tenant may do has changed."""
        bucket = self._buckets.get(("tenant", name))
        if bucket is not None and bucket.rate != self._rate("tenant", name):
            del self._buckets["tenant", name]
        if (tenant := self.tenants.get(name)) is not None:
            tenant.full = False
            self._expect(name, now)

    # -- jobs

    def put(self, entry: Entry, now: int) -> None:
        """Add a job, which is claimable once it is due."""
        tenant = self.tenant(entry.tenant)
        lane = tenant.lanes.get(entry.task)
        if lane is None:
            lane = tenant.lanes[entry.task] = Lane()
        lane.put(entry, self._rank, now)
        self._expect(entry.tenant, entry.run_at)

    def drop(self, entry: Entry, now: int) -> None:
        """Remove a job that is no longer claimable."""
        tenant = self.tenants.get(entry.tenant)
        if tenant is None:
            return
        lane = tenant.lanes.get(entry.task)
        if lane is not None:
            lane.drop(entry.id)
            if not lane:
                del tenant.lanes[entry.task]
        self._forget(entry.tenant, now)

    def tenant(self, name: str) -> Tenant:
        return self.tenants.setdefault(name, Tenant())

    def start(self, entry: Entry, holder: str) -> None:
        """The job runs."""
        tenant = self.tenant(entry.tenant)
        tenant.running += 1
        tenant.holders[holder] += 1
        self.running[entry.id] = entry.tenant, holder

    def stop(self, entry: Entry, now: int) -> bool:
        """The job has stopped running. Returns whether somebody may be waiting for that."""
        name, holder = self.running.pop(entry.id)
        tenant = self.tenants[name]
        tenant.running -= 1
        tenant.holders[holder] -= 1
        if not tenant.holders[holder]:
            del tenant.holders[holder]
        if tenant.full:
            tenant.full = False
            self._expect(name, now)
        self._forget(name, now)
        return not (self.policy.running is self.policy.tenant_workers is self.cap(name) is None)

    def _forget(self, name: str, now: int) -> None:
        """Forget a tenant that would come back just the same: it has no jobs, its count is not above the round, and its
        rate is saved up."""
        if self._is_idle(name, now) and self.tenants[name].count <= self.round:
            self.forget(name)

    def _is_idle(self, name: str, now: int) -> bool:
        tenant, bucket = self.tenants[name], self._buckets.get(("tenant", name))
        if tenant.awake or tenant.lanes or tenant.running:
            return False
        return bucket is None or bucket.full_at <= now

    def idle(self, now: int) -> list[str]:
        """Tenants without jobs whose rate is saved up."""
        return [name for name in self.tenants if self._is_idle(name, now)]

    def forget(self, name: str) -> None:
        """Forget the tenant; if it comes back, it is a new one."""
        del self.tenants[name]
        self._buckets.pop(("tenant", name), None)

    def spent(self, entry: Entry, now: int) -> None:
        """A job was taken: spend one of every rate that applies to it."""
        for bucket in (self.bucket("queue"), self.bucket("tenant", entry.tenant), self.bucket("task", entry.task)):
            if bucket is not None:
                bucket.full_at = bucket.rate.spend(bucket.full_at, now, 1)

    # -- turns

    def wake(self, now: int, most: int) -> None:
        """Wake tenants whose time has come, at most this many."""
        for _ in range(most):
            first = self._asleep.first(self._sleeps)
            if first is None or first[0] > now:
                break
            self._asleep.pop()
            since, _, name = first
            tenant = self.tenants[name]
            tenant.awake, tenant.since, tenant.wake_at = True, since, None
            tenant.count = max(tenant.count, self.round)
            self._stand(name)

    def _stand(self, name: str) -> None:
        tenant = self.tenants[name]
        self._awake.put((tenant.count, tenant.since, name), len(self.tenants), self._stands)

    def _stands(self, place: tuple[int, int, str]) -> bool:
        tenant = self.tenants.get(place[2])
        return tenant is not None and tenant.awake and (tenant.count, tenant.since) == place[:2]

    def _sleeps(self, place: tuple[int, int, str]) -> bool:
        tenant = self.tenants.get(place[2])
        return tenant is not None and tenant.wake_at == place[0]

    def _expect(self, name: str, instant: int) -> None:
        """The tenant may have a job to give from then on."""
        tenant = self.tenants[name]
        if not (tenant.awake or tenant.full) and (tenant.wake_at is None or instant < tenant.wake_at):
            tenant.wake_at = instant
            self._asleep.put((instant, 0, name), len(self.tenants), self._sleeps)

    def _sleep(self, name: str, until: int) -> None:
        tenant = self.tenants[name]
        tenant.awake, tenant.wake_at = False, None
        if until < FOREVER:
            self._expect(name, until)

    def room(self, now: int) -> int | None:
        """How many jobs the queue as a whole may still give out; None: any number."""
        cap, free = self.policy.running, self.free("queue", "", now)
        rooms = [max(0, cap - len(self.running))] if cap is not None else []
        return min([*rooms, *([] if free is None else [free])], default=None)

    def next_tenant(self, holder: str) -> str | None:
        """The tenant to visit next."""
        others: set[str] = set()
        while (first := self._awake.first(self._stands)) is not None:
            holders = self.tenants[first[2]].holders
            if self.policy.tenant_workers is None or holder in holders or len(holders) < self.policy.tenant_workers:
                break
            others.add(self._awake.pop()[2])
        for name in others:
            self._stand(name)
        return None if first is None else first[2]

    def given(self, name: str, jobs: int) -> None:
        """The tenant was given this many jobs."""
        if jobs:
            self.tenants[name].count += jobs
            self._stand(name)

    def allowance(self, name: str, now: int) -> int:
        """The allowance: how many jobs the tenant may be given now. If it is 0, the tenant is asleep or full from now
        on."""
        tenant = self.tenants[name]
        self.round = max(self.round, tenant.count)
        cap = self.cap(name)
        if cap is not None and tenant.running >= cap:
            self._sleep(name, FOREVER)
            tenant.full = True
            return 0
        paused, opens_at = self.paused_tenants.get(name, 0), self.opens_at("tenant", name, now)
        if paused > now or opens_at is not None:
            self._sleep(name, max(paused, opens_at or 0))
            return 0
        free = self.free("tenant", name, now)
        rooms = (self.policy.tenant_batch or TENANT_BATCH, None if cap is None else cap - tenant.running, free)
        return min(room for room in rooms if room is not None)

    def eligible(self, name: str, now: int, find: Callable[[JobId], Entry]) -> Iterator[Entry]:
        """The tenant's due jobs in order, without tasks that may not run now. The caller records a job as taken before
        it asks for the next, and puts back a job that it does not take."""
        lanes = self.tenants[name].lanes
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
            if self.closed_until(task, now) or task not in lanes:
                continue
            entry = lanes[task].draw(find, now)
            if entry is not None:
                yield entry
            push(task)

    def _rank(self, entry: Entry) -> int:
        step = self.policy.ageing
        return rank(entry) if step is None else entry.run_at + entry.priority * step

    def rule(self, policy: Policy, find: Callable[[JobId], Entry]) -> None:
        """Another policy is in force. If it changes the order of jobs, all lanes are reordered."""
        before, self.policy = self.policy, policy
        if policy.ageing != before.ageing:
            for lane in [lane for tenant in self.tenants.values() for lane in tenant.lanes.values()]:
                for job_id in lane.due.instants:
                    lane.due.put(job_id, self._rank(find(job_id)))

    def rest(self, name: str, now: int) -> None:
        """The tenant has no eligible job left: it falls asleep."""
        tenant = self.tenants[name]
        instants = [
            max(first, self.closed_until(task, now))
            for task, lane in tenant.lanes.items()
            for first in (now if lane.due.instants else None, lane.later.first())
            if first is not None
        ]
        self._sleep(name, min(instants, default=FOREVER))
        self._forget(name, now)

    def next_in(self, now: int) -> int | None:
        """How long until a tenant wakes, or the rate of the queue opens."""
        opens_at = self.opens_at("queue", "", now)
        if opens_at is not None:
            return opens_at - now
        if self.policy.running is not None and len(self.running) >= self.policy.running:
            return None
        first = self._asleep.first(self._sleeps)
        return None if first is None else max(0, first[0] - now)
