"""The turns of tenants in a governed queue, for stores that are written in Python.

The steps are those of :meth:`headrace.seam.protocol.Backend.claim`: wake, next tenant, allowance, take, rest. What they
decide is decided here; where tenants and jobs lie is told by a store's :class:`Visits`.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from headrace.backends.claims import Taken
from headrace.seam.policy import FOREVER, TENANT_BATCH, Policy, PolicyState, Rate


def opens_at(rate: Rate | None, full_at: int, now: int) -> int | None:
    """When a rate opens, if it is shut."""
    return None if rate is None or rate.allows(full_at, now) else rate.opens_at(full_at)


class Tenant:
    """A tenant among the others. A store adds where its jobs lie."""

    __slots__ = (
        "awake", "cap", "count", "full", "full_at", "name", "paused_until", "rate", "running", "since", "wake_at",
    )  # fmt: skip

    name: str
    count: int
    since: int
    awake: bool
    full: bool
    wake_at: int | None
    """When it wakes, if it sleeps for a time."""
    running: int
    cap: int | None
    """At most this many of its jobs run."""
    rate: Rate | None
    full_at: int
    paused_until: int

    def sleep(self, until: int) -> None:
        """Take no turns until then."""
        self.awake = False
        self.wake_at = until if until < FOREVER else None


AnyTenant = TypeVar("AnyTenant", bound=Tenant)


class Turns:
    """What the tenants of a governed queue share: its rules, and how far they are used up."""

    def __init__(self, policy: Policy, round_: int = 0, full_at: int = 0, running: int = 0) -> None:
        self.policy = policy
        self.round = round_
        self.full_at = full_at
        self.running = running
        self.paused_tasks: dict[str, int] = {}
        """Until when."""
        self.task_full_at: dict[str, int] = {}
        self.closed: dict[str, int] = {}
        """Tasks that may not run now, and until when."""

    def begin(self, now: int) -> None:
        """A claim begins."""
        self.closed = {}
        for task in self.paused_tasks.keys() | self.task_full_at.keys():
            self._close(task, now)

    def _close(self, task: str, now: int) -> None:
        until = self.paused_tasks.get(task, 0)
        rate = self.policy.task_rates.get(task)
        if rate is not None and not rate.allows(self.task_full_at.get(task, 0), now):
            until = max(until, rate.opens_at(self.task_full_at[task]))
        if until > now:
            self.closed[task] = until

    def room(self, wanted: int, now: int) -> int:
        """How many of the wanted jobs the queue as a whole may give out."""
        cap, rate = self.policy.running, self.policy.rate
        if cap is not None:
            wanted = min(wanted, cap - self.running)
        return wanted if rate is None else min(wanted, rate.allows(self.full_at, now))

    def allowance(self, tenant: Tenant, now: int) -> int:
        """How many jobs the tenant may be given now. If it is 0, the tenant is asleep or full from now on."""
        allowed, cap, rate = self.policy.tenant_batch or TENANT_BATCH, tenant.cap, tenant.rate
        if cap is not None:
            if tenant.running >= cap:
                tenant.sleep(FOREVER)
                tenant.full = True
                return 0
            allowed = min(allowed, cap - tenant.running)
        free = allowed if rate is None else rate.allows(tenant.full_at, now)
        if tenant.paused_until > now or not free:
            opens = 0 if rate is None or free else rate.opens_at(tenant.full_at)
            tenant.sleep(max(tenant.paused_until, opens))
            return 0
        return min(allowed, free)

    def task_room(self, task: str, wanted: int, now: int) -> int:
        """How many of the wanted jobs of a task its rate allows."""
        rate = self.policy.task_rates.get(task)
        return wanted if rate is None else min(wanted, rate.allows(self.task_full_at.get(task, 0), now))

    def spend(self, tenant: Tenant, task: str, jobs: int, now: int) -> None:
        """Jobs were taken: spend what they cost of every rate that applies to them."""
        if self.policy.rate is not None:
            self.full_at = self.policy.rate.spend(self.full_at, now, jobs)
        if tenant.rate is not None:
            tenant.full_at = tenant.rate.spend(tenant.full_at, now, jobs)
        if (rate := self.policy.task_rates.get(task)) is not None:
            self.task_full_at[task] = rate.spend(self.task_full_at.get(task, 0), now, jobs)
            self._close(task, now)

    def state(self, now: int) -> PolicyState:
        """The policy, which tasks are paused, and which rates are shut."""
        rates = {"": (self.policy.rate, self.full_at)} | {
            task: (rate, self.task_full_at.get(task, 0)) for task, rate in self.policy.task_rates.items()
        }
        shut = {name: opens_at(rate, full_at, now) for name, (rate, full_at) in rates.items()}
        return PolicyState(
            self.policy,
            True,
            {task: until for task, until in self.paused_tasks.items() if until > now},
            {name: instant for name, instant in shut.items() if instant is not None},
        )

    def next_in(self, wake_at: int | None, now: int) -> int | None:
        """How long until the rate of the queue opens, or the first tenant wakes."""
        shut = opens_at(self.policy.rate, self.full_at, now)
        if shut is not None:
            return shut - now
        if wake_at is None or (self.policy.running is not None and self.running >= self.policy.running):
            return None
        return max(0, wake_at - now)


class Visits(Protocol[AnyTenant]):
    """The tenants of a governed queue, and their jobs, as one claim finds them in a store."""

    def wake(self, most: int) -> None:
        """Wake tenants whose time has come; ``most`` is the number of jobs that the claim has room for."""
        ...

    def next_tenant(self, room: int) -> AnyTenant | None:
        """Take the first awake tenant that the holder may have out of the order. The claim has room for this many jobs
        of all tenants together."""
        ...

    def take(self, tenant: AnyTenant, most: int) -> int:
        """Lease the tenant's first claimable jobs, up to that many, and spend what they cost; return how many."""
        ...

    def wakes_at(self, tenant: AnyTenant) -> int:
        """When the tenant's first job that is left is due and its task may run; ``FOREVER`` if there is none."""
        ...

    def visited(self, tenant: AnyTenant, again: bool) -> None:
        """The visit is over. Put the tenant back into the order if it is awake; unless ``again``, this claim does not
        visit it any more."""
        ...


def serve(turns: Turns, visits: Visits[AnyTenant], taken: Taken, most: int, now: int) -> None:
    """Visit tenants in turn and take up to ``most`` jobs."""
    visits.wake(most)
    jobs = taken.jobs
    goal = len(jobs) + most
    while taken.left and (room := turns.room(goal - len(jobs), now)) > 0:
        tenant = visits.next_tenant(room)
        if tenant is None:
            break
        if tenant.count > turns.round:
            turns.round = tenant.count
        allowed = min(turns.allowance(tenant, now), room)
        got = visits.take(tenant, allowed) if allowed else 0
        again = got == allowed or not taken.left
        tenant.count += got
        if not again:
            # With something due left that could not be promoted, the tenant stays awake for the next claim.
            if (wakes_at := visits.wakes_at(tenant)) > now:
                tenant.sleep(wakes_at)
            else:
                taken.unfinished = True
        visits.visited(tenant, again)
        if not got:
            taken.work()
