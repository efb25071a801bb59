"""Where a claim finds the tenants of a governed queue in memory."""

from __future__ import annotations

from typing import NamedTuple

from headrace.backends.memory.leasing import Leasing, MemoryTaken
from headrace.backends.memory.turns import MemoryTenant, MemoryTurns


class MemoryVisits(NamedTuple):
    """The :class:`~headrace.backends.turns.Visits` of one claim."""

    leasing: Leasing
    turns: MemoryTurns
    taken: MemoryTaken
    now: int
    left_out: list[MemoryTenant]
    """Tenants that this claim does not visit, or not again."""

    def wake(self, most: int) -> None:
        self.turns.wake(most, self.now)

    def next_tenant(self, room: int) -> MemoryTenant | None:
        while (tenant := self.turns.next_tenant()) is not None:
            if self.turns.may_have(self.taken.req.holder, tenant):
                return tenant
            self.left_out.append(tenant)
        return None

    def take(self, tenant: MemoryTenant, most: int) -> int:
        jobs = 0
        candidates = self.turns.eligible(tenant, self.leasing.find, self.now)
        for entry in self.leasing.lease(candidates, self.taken, most, self.now):
            self.turns.spend(tenant, entry.task, 1, self.now)
            jobs += 1
        return jobs

    def wakes_at(self, tenant: MemoryTenant) -> int:
        return self.turns.wakes_at(tenant, self.now)

    def visited(self, tenant: MemoryTenant, again: bool) -> None:
        if again or not tenant.awake:
            self.turns.put_back(tenant)
        else:
            self.left_out.append(tenant)
        if not again:
            self.turns.forget_idle(tenant, self.now)

    def close(self) -> None:
        """The claim is done with the queue."""
        for tenant in self.left_out:
            self.turns.put_back(tenant)
