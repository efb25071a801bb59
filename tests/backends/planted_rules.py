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
from headrace.backends.memory.turns import Turns
from headrace.seam.records import Room
from headrace.types import JobState


class RuleBreaker(MemoryBackend):
    """Its governed queues, or its store as a whole, are of another kind."""

    turns: ClassVar[type[Turns]] = Turns
    kind: ClassVar[type[MemoryStore]] = MemoryStore

    def __init__(self, store: MemoryStore | None = None, now: Callable[[], int] | None = None) -> None:
        own = _store(self.kind, self.turns) if store is None else store
        if now is None:
            super().__init__(own)
        else:
            super().__init__(own, now)


def _store(kind: type[MemoryStore], turns: type[Turns]) -> MemoryStore:
    class Store(kind):  # type: ignore[misc, valid-type]
        def govern(self, queue: str) -> Turns:
            known = super().govern(queue)
            known.__class__ = turns
            return known

    return Store()


class RefusalsSpendTheRate(RuleBreaker):
    class turns(Turns):
        def allowance(self, name: str, now: int) -> int:
            shut = self.opens_at("tenant", name, now)
            allowed = super().allowance(name, now)
            if shut is not None and (bucket := self.bucket("tenant", name)) is not None:
                bucket.full_at += bucket.rate.every
            return allowed


class OneHolderTooMany(RuleBreaker):
    class turns(Turns):
        def next_tenant(self, holder: str) -> str | None:
            most = self.policy.tenant_workers
            more = self.policy if most is None else replace(self.policy, tenant_workers=most + 1)
            with patch.object(self, "policy", more):
                return super().next_tenant(holder)


class LostTokensStayTaken(RuleBreaker):
    class turns(Turns):
        def stop(self, entry: Entry, now: int) -> bool:
            name, holder = self.running[entry.id]
            lost = entry.lost
            waited_for = super().stop(entry, now)
            if lost:
                self.tenant(name).holders[holder] += 1
            return waited_for


class NewcomersEnterAtZero(RuleBreaker):
    class turns(Turns):
        def wake(self, now: int, most: int) -> None:
            with patch.object(self, "round", 0):
                super().wake(now, most)


class EveryClaimStartsOver(RuleBreaker):
    class turns(Turns):
        def wake(self, now: int, most: int) -> None:
            super().wake(now, most)
            for name, tenant in self.tenants.items():
                tenant.count = self.round
                if tenant.awake:
                    self._stand(name)


class ATurnIsAsLongAsTheLine(RuleBreaker):
    class turns(Turns):
        def allowance(self, name: str, now: int) -> int:
            with patch.object(self, "policy", replace(self.policy, tenant_batch=1_000)):
                return super().allowance(name, now)


class AJobToComeWakesTheFull(RuleBreaker):
    """A tenant that is full sleeps until the scheduled job is due, whatever ends meanwhile."""

    class turns(Turns):
        def put(self, entry: Entry, now: int) -> None:
            self.tenant(entry.tenant).full = False
            super().put(entry, now)


class TheFullStayFull(RuleBreaker):
    class turns(Turns):
        def stop(self, entry: Entry, now: int) -> bool:
            tenant = self.tenants[self.running[entry.id][0]]
            full, tenant.full = tenant.full, False
            waited_for = super().stop(entry, now)
            tenant.full = full
            return waited_for


class OneMoreRuns(RuleBreaker):
    class turns(Turns):
        def room(self, now: int) -> int | None:
            policy = self.policy
            more = policy if policy.running is None else replace(policy, running=policy.running + 1)
            with patch.object(self, "policy", more):
                return super().room(now)


class OneMoreOfATenantRuns(RuleBreaker):
    class turns(Turns):
        def cap(self, tenant: str) -> int | None:
            cap = super().cap(tenant)
            return None if cap is None else cap + 1


class PausedTasksRun(RuleBreaker):
    class turns(Turns):
        def closed_until(self, task: str, now: int) -> int:
            return self.opens_at("task", task, now) or 0


class ATenantSleepsForItsLastTask(RuleBreaker):
    class turns(Turns):
        def rest(self, name: str, now: int) -> None:
            tenant = self.tenants[name]
            super().rest(name, now)
            firsts = ((task, now if lane.due.instants else lane.later.first()) for task, lane in tenant.lanes.items())
            instants = [max(first, self.closed_until(task, now)) for task, first in firsts if first is not None]
            if instants:
                self._sleep(name, max(instants))


class RatesAreForgottenWithTheirTenant(RuleBreaker):
    class turns(Turns):
        def _forget(self, name: str, now: int) -> None:
            tenant = self.tenants[name]
            if not (tenant.awake or tenant.lanes or tenant.running):
                self._buckets.pop(("tenant", name), None)
            super()._forget(name, now)


class AgeingCountsForNothing(RuleBreaker):
    class turns(Turns):
        def _rank(self, entry: Entry) -> int:
            return rank(entry)


class NobodySaysWhenTheRateOpens(RuleBreaker):
    class turns(Turns):
        def next_in(self, now: int) -> int | None:
            return None if self.opens_at("queue", "", now) is not None else super().next_in(now)


class RulesChangeAndNobodyWakes(RuleBreaker):
    class turns(Turns):
        def wake_all(self, now: int) -> None:
            pass

        def wake_tenant(self, name: str, now: int) -> None:
            pass


class RetriesGiveTheirTurnBack(RuleBreaker):
    class kind(MemoryStore):
        def _keeps_turn(self, entry: Entry, state: JobState, queue: str | None) -> bool:
            retried = entry.state is JobState.RUNNING and state is JobState.AVAILABLE
            return not retried and super()._keeps_turn(entry, state, queue)


class GroupsGoTwoByTwo(RuleBreaker):
    class kind(MemoryStore):
        def _turns_of(self, queue: str) -> int:
            return super()._turns_of(queue) + 1


class WhoWasCalledStaysCalled(RuleBreaker):
    """An earlier job that comes later waits behind one that is not due."""

    class kind(MemoryStore):
        def call(self, queue: str, name: str) -> None:
            group = self.groups.get((queue, name))
            if group is not None:
                with patch("headrace.backends.memory.groups.Group.send_back", lambda self, turns: ()):
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
