"""Where a claim finds the tenants of a governed queue in memory."""

from __future__ import annotations

from headrace.backends.memory.leasing import Leasing, MemoryTaken
from headrace.backends.memory.turns import MemoryTenant, MemoryTurns


class MemoryVisits:
    """The :class:`~headrace.backends.turns.Visits` of one claim."""

    def __init__(self, leasing: Leasing, turns: MemoryTurns, taken: MemoryTaken, now: int) -> None:
        self._leasing = leasing
        self._turns = turns
        self._taken = taken
        self._now = now
        self._aside: list[MemoryTenant] = []
        """Tenants that this claim does not visit, or not again."""

    def wake(self, most: int) -> None:
        self._turns.wake(most, self._now)

    def next_tenant(self, room: int) -> MemoryTenant | None:
        while (tenant := self._turns.next_tenant()) is not None:
            if self._turns.may_have(self._taken.req.holder, tenant):
                return tenant
            self._aside.append(tenant)
        return None

    def take(self, tenant: MemoryTenant, most: int) -> int:
        jobs = 0
        candidates = self._turns.eligible(tenant, self._leasing.find, self._now)
        for entry in self._leasing.lease(candidates, self._taken, most, self._now):
            self._turns.spend(tenant, entry.task, 1, self._now)
            jobs += 1
        return jobs

    def wakes_at(self, tenant: MemoryTenant) -> int:
        return self._turns.wakes_at(tenant, self._now)

    def visited(self, tenant: MemoryTenant, again: bool) -> None:
        if again or not tenant.awake:
            self._turns.put_back(tenant)
        else:
            self._aside.append(tenant)
        if not again:
            self._turns.forget_idle(tenant, self._now)

    def close(self) -> None:
        """The claim is done with the queue."""
        for tenant in self._aside:
            self._turns.put_back(tenant)
