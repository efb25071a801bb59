"""Stores that break the rules of queues: the memory backend with one planted fault each."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar
from unittest.mock import patch

from msgspec.structs import replace

from headrace.backends.memory import MemoryBackend
from headrace.backends.memory.entry import Entry
from headrace.backends.memory.lane import rank
from headrace.backends.memory.store import MemoryStore
from headrace.backends.memory.turns import MemoryTenant, MemoryTurns
from headrace.backends.turns import Tenant, opens_at
from headrace.seam.records import Room
from headrace.types import JobState


class RuleBreaker(MemoryBackend):
    """Its governed queues, or its store as a whole, are of another kind."""

    turns: ClassVar[type[MemoryTurns]] = MemoryTurns
    kind: ClassVar[type[MemoryStore]] = MemoryStore

    def __init__(self, store: MemoryStore | None = None, now: Callable[[], int] | None = None) -> None:
        own = _store(self.kind, self.turns) if store is None else store
        if now is None:
            super().__init__(own)
        else:
            super().__init__(own, now)


def _store(kind: type[MemoryStore], turns: type[MemoryTurns]) -> MemoryStore:
    class Store(kind):  # type: ignore[misc, valid-type]
        def govern(self, queue: str) -> MemoryTurns:
            known = super().govern(queue)
            known.__class__ = turns
            return known

    return Store()


class RefusalsSpendTheRate(RuleBreaker):
    class turns(MemoryTurns):
        def allowance(self, tenant: Tenant, now: int) -> int:
            shut = opens_at(tenant.rate, tenant.full_at, now)
            allowed = super().allowance(tenant, now)
            if shut is not None and tenant.rate is not None:
                tenant.full_at += tenant.rate.every
            return allowed


class OneHolderTooMany(RuleBreaker):
    class turns(MemoryTurns):
        def may_have(self, holder: str, tenant: MemoryTenant) -> bool:
            most = self.policy.tenant_workers
            more = self.policy if most is None else replace(self.policy, tenant_workers=most + 1)
            with patch.object(self, "policy", more):
                return super().may_have(holder, tenant)


class LostTokensStayTaken(RuleBreaker):
    class turns(MemoryTurns):
        def stop(self, entry: Entry, now: int) -> bool:
            name, holder = self.runs[entry.id]
            lost = entry.lost
            waited_for = super().stop(entry, now)
            if lost:
                self.tenant(name).holders[holder] += 1
            return waited_for


class NewcomersEnterAtZero(RuleBreaker):
    class turns(MemoryTurns):
        def wake(self, most: int, now: int) -> None:
            with patch.object(self, "round", 0):
                super().wake(most, now)


class EveryClaimStartsOver(RuleBreaker):
    class turns(MemoryTurns):
        def wake(self, most: int, now: int) -> None:
            super().wake(most, now)
            for tenant in self.tenants.values():
                tenant.count = self.round
                if tenant.awake:
                    self.put_back(tenant)


class ATurnIsAsLongAsTheLine(RuleBreaker):
    class turns(MemoryTurns):
        def allowance(self, tenant: Tenant, now: int) -> int:
            with patch.object(self, "policy", replace(self.policy, tenant_batch=1_000)):
                return super().allowance(tenant, now)


class AJobToComeWakesTheFull(RuleBreaker):
    """A tenant that is full sleeps until the scheduled job is due, whatever ends meanwhile."""

    class turns(MemoryTurns):
        def put(self, entry: Entry, now: int) -> None:
            self.tenant(entry.tenant).full = False
            super().put(entry, now)


class TheFullStayFull(RuleBreaker):
    class turns(MemoryTurns):
        def stop(self, entry: Entry, now: int) -> bool:
            tenant = self.tenants[self.runs[entry.id][0]]
            full, tenant.full = tenant.full, False
            waited_for = super().stop(entry, now)
            tenant.full = full
            return waited_for


class OneMoreRuns(RuleBreaker):
    class turns(MemoryTurns):
        def room(self, wanted: int, now: int) -> int:
            policy = self.policy
            more = policy if policy.running is None else replace(policy, running=policy.running + 1)
            with patch.object(self, "policy", more):
                return super().room(wanted, now)


class OneMoreOfATenantRuns(RuleBreaker):
    class turns(MemoryTurns):
        def allowance(self, tenant: Tenant, now: int) -> int:
            more = None if tenant.cap is None else tenant.cap + 1
            with patch.object(tenant, "cap", more):
                return super().allowance(tenant, now)


class PausedTasksRun(RuleBreaker):
    class turns(MemoryTurns):
        def _close(self, task: str, now: int) -> None:
            with patch.object(self, "paused_tasks", {}):
                super()._close(task, now)


class ATenantSleepsForItsLastTask(RuleBreaker):
    class turns(MemoryTurns):
        def wakes_at(self, tenant: MemoryTenant, now: int) -> int:
            lanes = tenant.lanes.items()
            firsts = ((task, now if lane.due.positions else lane.delayed.first()) for task, lane in lanes)
            instants = [max(first, self.closed.get(task, 0)) for task, first in firsts if first is not None]
            return max(instants, default=super().wakes_at(tenant, now))


class RatesAreForgottenWithTheirTenant(RuleBreaker):
    class turns(MemoryTurns):
        def forget_idle(self, tenant: MemoryTenant, now: int) -> None:
            if not (tenant.awake or tenant.lanes or tenant.running):
                tenant.full_at = 0
            super().forget_idle(tenant, now)


class AgeingCountsForNothing(RuleBreaker):
    class turns(MemoryTurns):
        def _rank(self, entry: Entry) -> int:
            return rank(entry)


class NobodySaysWhenTheRateOpens(RuleBreaker):
    class turns(MemoryTurns):
        def next_in(self, wake_at: int | None, now: int) -> int | None:
            shut = opens_at(self.policy.rate, self.full_at, now)
            return None if shut is not None else super().next_in(wake_at, now)


class RulesChangeAndNobodyWakes(RuleBreaker):
    class turns(MemoryTurns):
        def wake_all(self, now: int) -> None:
            pass

        def wake_tenant(self, name: str, now: int) -> None:
            pass


class RetriesGiveTheirTurnBack(RuleBreaker):
    class kind(MemoryStore):
        def _keeps_call(self, entry: Entry, state: JobState, queue: str | None) -> bool:
            retried = entry.state is JobState.RUNNING and state is JobState.AVAILABLE
            return not retried and super()._keeps_call(entry, state, queue)


class GroupsGoTwoByTwo(RuleBreaker):
    class kind(MemoryStore):
        def _group_running(self, queue: str) -> int:
            return super()._group_running(queue) + 1


class WhoWasCalledStaysCalled(RuleBreaker):
    """An earlier job that comes later waits behind one that is not due."""

    class kind(MemoryStore):
        def call(self, queue: str, name: str) -> None:
            group = self.groups.get((queue, name))
            if group is not None:
                with patch("headrace.backends.memory.groups.Group.send_back", lambda self, most: ()):
                    super().call(queue, name)


class OneMoreWaits(RuleBreaker):
    class kind(MemoryStore):
        def _full(self, name: str, waiting: int) -> Room | None:
            policy = self.policies.get(name)
            if policy is None or policy.depth is None:
                return None
            with patch.dict(self.policies, {name: replace(policy, depth=policy.depth + 1)}):
                return super()._full(name, waiting)


class PausedJobsTakeNoRoom(RuleBreaker):
    class kind(MemoryStore):
        def _full(self, name: str, waiting: int) -> Room | None:
            paused = sum(
                count
                for (queue, state), count in self.counts.items()
                if name in ("", queue) and state is JobState.PAUSED
            )
            return super()._full(name, waiting - paused)


RULE_BREAKERS = tuple(RuleBreaker.__subclasses__())
BLATANT = (
    EveryClaimStartsOver,
    OneMoreRuns,
    RulesChangeAndNobodyWakes,
    NobodySaysWhenTheRateOpens,
    GroupsGoTwoByTwo,
    RetriesGiveTheirTurnBack,
    WhoWasCalledStaysCalled,
    OneMoreWaits,
)
"""What shows soon, whatever else is going on."""
