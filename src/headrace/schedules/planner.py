"""A duty of every worker: plan the slots of schedules ahead of time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from msgspec.structs import replace

from headrace.core.alerts import Alert
from headrace.core.clock import Clock
from headrace.core.config import PlannerSettings
from headrace.core.durations import micros
from headrace.core.events import Event, EventKind, Observers
from headrace.core.slow_calls import timed
from headrace.core.upkeep import Upkeep
from headrace.errors import ConfigError, Unavailable
from headrace.schedules.plan import SHORTEST, Definition, make_plan, unpack
from headrace.seam.instants import to_datetime
from headrace.seam.protocol import TickStore
from headrace.seam.ticks import Look, NewTick, Plan, Save, Schedule, TickOutcome
from headrace.text import shown
from headrace.types import Duration

log = logging.getLogger("headrace")

IntervalFunction = Callable[[str], Duration | None]
"""How long until the next slot of the schedule of that name; None: as its rule says."""

_KINDS = {
    TickOutcome.FIRED: EventKind.TICK_FIRED,
    TickOutcome.SKIPPED: EventKind.TICK_SKIPPED,
    TickOutcome.MISSED: EventKind.TICK_MISSED,
}
_LATER = 60_000_000
"""When to look again at a schedule that cannot be planned, as one that a newer version wrote."""
_PUT_OFF = "it is tried again later"
_AGAIN = 1_000_000
"""When to ask a store again that did not answer."""
_SELDOM = 64
"""The most beats between two looks of a worker that is not allowed to plan."""
_FRUITLESS = 3
"""The planner rests after this many rounds in a row in which others were faster or the store did nothing."""
_BEHIND = 100
"""If nobody looked at this many schedules in time, the planners do not keep up."""
_DESERTED = 3
"""After this many missed looks, others plan a schedule of that share."""
_MOST_LEFT = 1_000
"""Schedules left to others that one look reads past, to reach those behind them."""
_STAGGER = 0.2
"""Planners that wait for one instant spread over this many seconds: the first one plans, the others find it done."""


class Planner:
    """Looks for schedules to plan, on a jittered beat and whenever one is known to come up.

    It needs no leader: if several planners plan one schedule, the store accepts one plan and ignores the others. One
    plan is under way at a time.
    """

    def __init__(
        self,
        ticks: TickStore,
        clock: Clock,
        rng: Random,
        observers: Observers,
        settings: PlannerSettings,
        intervals: Mapping[str, IntervalFunction] | None = None,
    ) -> None:
        self._ticks = ticks
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._every = micros(settings.every) / 1e6
        self._beat = micros(settings.every)
        self._patience = 2 * self._beat
        self._ahead = micros(settings.ahead)
        self._look = Look(settings.batch, settings.share, settings.shares)
        self._intervals = intervals or {}
        self._left: set[str] = set()
        """Schedules already logged as left to others."""
        self._help_at = 0.0
        """When to look for shares without a planner, by the loop's clock."""
        self._woken = asyncio.Event()
        self._forbidden = 0
        """How often in a row the store said that this worker is not allowed to plan."""

    def wake(self) -> None:
        """A schedule has changed: look now."""
        self._woken.set()

    async def run(self) -> None:
        """Plan until cancelled, the first time at once. A worker that is not allowed to tries less and less often."""
        while True:
            self._woken.clear()
            next_in = await self.look()
            if self._forbidden:
                await asyncio.sleep(self._every * min(2**self._forbidden, _SELDOM))
                continue
            pause = self._every * (0.75 + self._rng.random() / 2)
            if next_in is not None:
                pause = min(pause, next_in / 1e6 + self._rng.random() * _STAGGER)
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
                # All planners hear of a change at once, and often of several in a row.
                await asyncio.sleep(self._rng.random() * _STAGGER)
            except TimeoutError:
                continue

    async def look(self) -> int | None:
        """Plan what must be planned, if the store and its permissions allow it; microseconds until the next look."""
        try:
            next_in = await self.plan_due()
            self._forbidden = 0
            return next_in
        except Unavailable:
            return _AGAIN
        except ConfigError as error:
            if not self._forbidden:
                log.warning("this worker is not allowed to plan schedules: %s", error)
            self._forbidden += 1
        except Exception:
            log.exception("planning failed; it is tried again")
        return None

    async def plan_due(self) -> int | None:
        """Plan all that must be planned now; returns microseconds until the next schedule must be looked at."""
        next_in = await self._plan_share()
        if self._look.shares > 1 and asyncio.get_running_loop().time() >= self._help_at:
            self._help_at = asyncio.get_running_loop().time() + self._every
            await self._help_out()
        return next_in

    async def _help_out(self) -> None:
        """Plan schedules of any share that nobody plans."""
        look = Look(self._look.limit)
        while True:
            looked = await timed(self._observers, "due", self._ticks.due(look, self._clock.stamp()))
            long_ago = looked.now - _DESERTED * self._beat
            schedules = [
                one
                for one in looked.schedules
                if one.look_at is not None
                and one.look_at < long_ago
                and one.bucket % self._look.shares != self._look.share
                and not self._is_for_others(one, looked.now)
            ]
            for share, count in sorted(Counter(one.bucket % self._look.shares for one in schedules).items()):
                which = f"share {share} of {self._look.shares}"
                sentence = f"{which} has no planner; another worker plans its schedules: {count} or more had waited"
                self._observers.alert(Alert.SHARE_UNATTENDED, which, sentence)
            if not schedules or not await self._plan_all(schedules, looked.now):
                return

    async def _plan_share(self) -> int | None:
        fruitless = overdue = left = 0
        while fruitless < _FRUITLESS:
            look = replace(self._look, limit=self._look.limit + left)
            looked = await timed(self._observers, "due", self._ticks.due(look, self._clock.stamp()))
            schedules = [one for one in looked.schedules if not self._is_for_others(one, looked.now)]
            left = len(looked.schedules) - len(schedules)
            if not schedules:
                if left < look.limit:
                    return looked.next_in
                if left >= _MOST_LEFT:
                    return _AGAIN
                continue
            if not fruitless:
                overdue += self._overdue(schedules, looked.now)
                self._warn_if_behind(overdue)
            fruitless = 0 if await self._plan_all(schedules, looked.now) else fruitless + 1
        return _AGAIN

    async def _plan_all(self, schedules: Sequence[Schedule], now: int) -> bool:
        """Plan these; returns whether the store carried out any plan."""
        if unmarked := [saved for one in schedules if (saved := self._marked(one)) is not None]:
            return any(await self._ticks.save(unmarked, self._clock.stamp()))
        sound, plans = [], []
        disabled = False
        for schedule in schedules:
            try:
                plan = self._plan_of(schedule, now)
            except ConfigError as error:
                disabled |= await self._disable(schedule, error)
            else:
                sound.append(schedule)
                plans.append(plan)
            await asyncio.sleep(0)
        return bool(plans and await self._plan(sound, plans, now)) or disabled

    async def _disable(self, schedule: Schedule, error: ConfigError) -> bool:
        """Disable a schedule that is not valid: it will not become so by itself. Returns whether this call did."""
        off = Save(replace(schedule, enabled=False), schedule.version)
        [saved] = await self._ticks.save([off], self._clock.stamp())
        if saved:
            log.error("schedule %s is disabled, because it is not valid: %s", shown(schedule.name), error)
            self._observers.tell(Event(EventKind.ERROR, error=error, detail=f"schedule {schedule.name} is disabled"))
        return saved

    def _marked(self, schedule: Schedule) -> Save | None:
        """The schedule, marked as dynamic, if this worker has a function for it and the store does not say so yet."""
        definition = _read(schedule) if schedule.name in self._intervals else None
        if definition is None or definition.dynamic_interval:
            return None
        return Save(replace(schedule, definition=replace(definition, dynamic_interval=True).pack()), schedule.version)

    def _is_for_others(self, schedule: Schedule, now: int) -> bool:
        """Whether it needs a function that this worker does not have, and the workers that have it are not late."""
        if (
            schedule.name in self._intervals
            or (definition := _read(schedule)) is None
            or not definition.dynamic_interval
        ):
            return False
        if schedule.name not in self._left:
            self._left.add(schedule.name)
            log.info("schedule %s is left to workers that have the function for its interval", shown(schedule.name))
        return schedule.slot is not None and now - schedule.slot <= self._patience

    async def _plan(self, schedules: Sequence[Schedule], plans: Sequence[Plan], now: int) -> bool:
        """Have the store carry out plans; returns whether it did any. A plan that it rejects is put off alone."""
        try:
            answers = await timed(self._observers, "plan", self._ticks.plan(plans, self._clock.stamp()))
        except (Unavailable, ConfigError):
            raise
        except Exception:
            if len(plans) == 1:
                log.exception("the store rejected a plan of schedule %s; %s", shown(plans[0].name), _PUT_OFF)
                answers = await self._ticks.plan([_put_off(schedules[0], now)], self._clock.stamp())
            else:
                each = zip(schedules, plans, strict=True)
                return any([await self._plan([schedule], [plan], now) for schedule, plan in each])
        told: Counter[str] = Counter()
        for schedule, plan, outcomes in zip(schedules, plans, answers, strict=True):
            tell_ticks(self._observers, plan, outcomes, now)
            warn_if_late(self._observers, schedule, plan, outcomes or (), now)
            told.update(outcome.value for outcome in outcomes or () if outcome is not None)
        log.debug("planned %d schedules; slots: %s", sum(one is not None for one in answers), dict(told))
        return any(outcomes is not None for outcomes in answers)

    def _plan_of(self, schedule: Schedule, now: int) -> Plan:
        """What to do now. Raises ``ConfigError`` for a schedule that is not valid. One that cannot be read, as a newer
        version's, or that names a time zone unknown here, is put off."""
        definition: Definition | None = None
        try:
            definition = unpack(schedule.definition)
            if definition.dynamic_interval and schedule.name not in self._intervals:
                return self._left_by_others(schedule, now)
            interval = None if schedule.name not in self._intervals else partial(self._ask_interval, schedule.name)
            return make_plan(schedule, definition, now, self._ahead, interval)
        except Exception as error:
            if definition is None and isinstance(error, ConfigError):
                raise
            log.exception("schedule %s cannot be planned; %s", shown(schedule.name), _PUT_OFF)
            return _put_off(schedule, now)

    def _left_by_others(self, schedule: Schedule, now: int) -> Plan:
        """Put it off for a moment, out of the way of other schedules: a worker that has the function may come."""
        if schedule.slot is not None:
            which = f"schedule {shown(schedule.name)}: the slot of {to_datetime(schedule.slot).isoformat()}"
            why = "a function sets its interval, and no running worker has that function"
            self._observers.alert(Alert.SCHEDULE_LATE, schedule.name, f"{which} waits: {why}", queue=schedule.queue)
        return _put_off(schedule, now, self._beat)

    def _ask_interval(self, name: str) -> int | None:
        try:
            given = self._intervals[name](name)
            return None if given is None else max(micros(given, f"schedule {name}: next interval"), 1_000_000)
        except Exception as error:
            log.exception(
                "the function for the interval of schedule %s raised; its fixed interval is used instead", shown(name)
            )
            self._observers.tell(Event(EventKind.ERROR, error=error, detail=f"interval of schedule {name}"))
            return None

    def _overdue(self, schedules: Sequence[Schedule], now: int) -> int:
        """How many schedules should have been looked at long ago."""
        long_ago = now - self._patience
        return sum(one.look_at is not None and one.look_at < long_ago for one in schedules)

    def _warn_if_behind(self, overdue: int) -> None:
        if overdue >= _BEHIND:
            waited = f"{overdue} or more schedules had waited {self._patience / 1e6:g} s or longer for a planner"
            sentence = f"{waited}; start more workers"
            self._observers.alert(Alert.PLANNER_BEHIND, "", sentence)


Outcomes = Sequence[TickOutcome | None] | None
"""Of the ticks of a plan; None: somebody else had carried it out."""


def tell_ticks(observers: Observers, plan: Plan, outcomes: Outcomes, now: int | None) -> None:
    """Report slots that were planned. Without ``now``, none counts as late: somebody asked for slots of the past."""
    if observers.meter is not None:
        _count(observers.meter.upkeep, plan, outcomes, now)
    if not observers:
        return
    for tick, outcome in zip(plan.ticks, outcomes or (), strict=False):
        if outcome is not None:
            job = tick.row if outcome is TickOutcome.FIRED else None
            name = (b"", "", "") if job is None else (job.id, job.queue, job.task)
            detail = f"{plan.name} {_named(tick)}"
            observers.tell(Event(_KINDS[outcome], *name, detail=detail, count=tick.count))


def _count(upkeep: Upkeep, plan: Plan, outcomes: Outcomes, now: int | None) -> None:
    """Slots by what came of them. Late: it fires, but was planned after its instant. Duplicate: planned before."""
    for tick, outcome in zip(plan.ticks, [None] * len(plan.ticks) if outcomes is None else outcomes, strict=False):
        late = outcome is TickOutcome.FIRED and now is not None and now > tick.run_at
        upkeep.ticked(plan.name, "late" if late else "duplicate" if outcome is None else outcome.value, tick.count)


def warn_if_late(
    observers: Observers, schedule: Schedule, plan: Plan, outcomes: Sequence[TickOutcome | None], now: int
) -> None:
    """Alert to the first slot that was missed, or planned late by more than twice the distance between slots."""
    for tick, outcome in zip(plan.ticks, outcomes, strict=False):
        late = now - tick.run_at
        if outcome is TickOutcome.MISSED:
            one = tick.count == 1
            what = f"{_named(tick)} {'was' if one else 'were'} missed: nobody planned {'it' if one else 'them'} in time"
        elif outcome is not None and late >= 2 * SHORTEST and late > 2 * _gap(schedule, tick.slot):
            what = f"{_named(tick)} was planned {late / 1e6:.0f} s after its instant"
        else:
            continue
        sentence = f"schedule {shown(plan.name)}: the slot of {what}"
        observers.alert(Alert.SCHEDULE_LATE, plan.name, sentence, queue=schedule.queue)
        return


def _named(tick: NewTick) -> str:
    more = "" if tick.count == 1 else f" and {tick.count - 1} after it"
    return f"{to_datetime(tick.slot).isoformat()}{more}"


def _gap(schedule: Schedule, slot: int) -> int:
    return unpack(schedule.definition).rule.gap(slot)


def _read(schedule: Schedule) -> Definition | None:
    """None: it cannot be read."""
    try:
        return unpack(schedule.definition)
    except Exception:
        return None


def _put_off(schedule: Schedule, now: int, by: int = _LATER) -> Plan:
    return Plan(schedule.name, schedule.uid, schedule.version, [], schedule.slot, now + by)
