"""Stores and planners with one bug each in what they do with schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from headrace.backends.memory import MemoryBackend
from headrace.backends.memory.ticks import MemoryTicks
from headrace.schedules import plan as planning
from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import _Planning
from headrace.schedules.planner import Planner
from headrace.seam.ticks import NewTick, Plan, Schedule, TickOutcome


class _AnyVersion(MemoryTicks):
    def _plan(self, plan: Plan, now: int) -> list[TickOutcome | None] | None:
        known = self._store.ledger.schedules.get(plan.name)
        if known is not None and plan.version is not None:
            plan = replace(plan, version=known.version)
        return super()._plan(plan, now)


class PlanIgnoresVersion(MemoryBackend):
    """The last planner wins, however long ago it looked."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = _AnyVersion(self.store, self._begin, self._insert, self._cancel)


class _SlotsTwice(MemoryTicks):
    def _tick(self, uid: bytes, tick: NewTick, schedule: Schedule, now: int) -> TickOutcome | None:
        if (uid, tick.slot) in self._store.ledger.ticks:
            self._store.ledger.remove((uid, tick.slot))
        return super()._tick(uid, tick, schedule, now)


class LedgerNotUnique(MemoryBackend):
    """A slot that has fired fires again when it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = _SlotsTwice(self.store, self._begin, self._insert, self._cancel)


class _Forgetful(MemoryTicks):
    def _plan(self, plan: Plan, now: int) -> list[TickOutcome | None] | None:
        before = self._store.ledger.schedules.get(plan.name)
        outcomes = super()._plan(plan, now)
        if before is not None and outcomes and plan.version is not None and plan.version % 5 == 0:
            self._store.ledger.schedules[plan.name] = before
        return outcomes


class PlanIsTwoSteps(MemoryBackend):
    """Jobs are stored, and now and then the schedule does not move on."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = _Forgetful(self.store, self._begin, self._insert, self._cancel)


STORES = [PlanIgnoresVersion, LedgerNotUnique, PlanIsTwoSteps]


def _keyed_by_jitter(self: _Planning, slot: int, due: int) -> NewTick:
    self._left -= 1
    return planning.tick(self._schedule, self._definition, due, due, self._now)


def _counts_from_the_jittered_time(self: _Planning) -> None:
    rule = self._definition.rule
    if self._slot is not None:
        started = self._due(self._slot) if isinstance(rule, EveryRule) else self._slot
        anew = EveryRule(rule.interval, started) if isinstance(rule, EveryRule) else None
        self._slot = self._definition.following(started, anew)


def _fires_all_that_is_late(self: _Planning) -> Iterator[NewTick]:
    return iter(())


_make_up = _Planning._make_up


def _says_nothing_of_what_it_missed(self: _Planning) -> list[NewTick]:
    return [one for one in _make_up(self) if one.row is not None]


def _counts_from_now(self: _Planning) -> None:
    """The next slot is an interval after whenever somebody came to plan this one."""
    rule = self._definition.rule
    if self._slot is not None:
        anew = EveryRule(rule.interval, max(self._now, self._slot)) if isinstance(rule, EveryRule) else None
        self._slot = self._definition.following(self._slot if anew is None else anew.anchor, anew)


async def _plans_nothing(self: Planner) -> int | None:
    return None


PATCHES: list[tuple[str, tuple[Any, str, Any]]] = [
    ("keyed by jitter", (_Planning, "_tick", _keyed_by_jitter)),
    ("counts from the jittered time", (_Planning, "_advance", _counts_from_the_jittered_time)),
    ("counts from now", (_Planning, "_advance", _counts_from_now)),
    ("fires all that is late", (_Planning, "_make_up", _fires_all_that_is_late)),
    ("says nothing of what it missed", (_Planning, "_make_up", _says_nothing_of_what_it_missed)),
    ("plans nothing", (Planner, "plan_due", _plans_nothing)),
]
