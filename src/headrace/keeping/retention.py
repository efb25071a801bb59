"""A duty of every worker: keep what has ended within its bounds of age, count and bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

from msgspec.structs import replace

from headrace.core.alerts import Alert, moment
from headrace.core.clock import Clock
from headrace.core.config import RetentionSettings
from headrace.core.durations import micros
from headrace.core.events import Event, EventKind, Observers
from headrace.errors import ConfigError, Unavailable
from headrace.keeping.bounds import ENDED, Bounds
from headrace.keeping.hard_bounds import HardBounds
from headrace.keeping.papers import WORKERS, Papers, Run, Step
from headrace.keeping.safety import witness
from headrace.keeping.sweeper import Situation, Sweeper
from headrace.seam.archive import ArchiveStore, Mark
from headrace.seam.protocol import Backend, Tidy
from headrace.seam.records import Leased, Settlement, SweepClause, SweepTarget
from headrace.types import JobState

log = logging.getLogger("headrace")

_FAILURES = 3
"""Failures of a step in a row that raise an alert."""
_SELDOM = 64
"""The most beats between two tries of a step that this worker is not allowed to do."""
_LOOK = 10.0
"""Seconds between two looks at the hard bounds, at least."""
_STEP = 1_000
"""Counts of removed jobs that are forgotten at once."""
_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_MANY = 100_000
"""Deletions because of age, in one run, that raise an alert."""


class Retention:
    """Sweeps every target on a jittered beat, in small steps, until each is within its bounds; then lets the store tidy
    up, if it needs that. A step that fails does not stop the others.

    What is too old goes only if that is safe (see :class:`~headrace.keeping.safety.Safety`); bounds of count and bytes
    always hold.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        rng: Random,
        observers: Observers,
        settings: RetentionSettings,
        *,
        spare: int = 0,
        vault: bool = False,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """``spare``: what ended more recently than this stays, in microseconds. ``vault``: whether nothing goes that is
        not archived. ``failed`` is told of errors."""
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._settings = settings
        self._every = micros(settings.every) / 1e6
        self._look_every = max(spare / 1e6, _LOOK)
        self._gap = micros(settings.safety.gap)
        self._sweeper = Sweeper(backend, clock, observers, settings, spare, vault=vault)
        self._failed = failed
        self._between: HardBounds | None = None
        self._situation: Situation | None = None
        self._allowed: set[JobState] = set()
        """States whose old jobs may go on this beat."""
        self._marks: dict[tuple[JobState, int], Mark | None] = {}
        """By state and age: up to where no job is left that is kept for this long."""
        self._marks_until = 0
        self._bounds: Mapping[JobState, Bounds] = {}
        self._done: list[Step] = []
        self._kept: dict[SweepTarget, int] = {}
        """How many jobs of each state this run has counted."""
        self._steps = [_Step("rules", self._look), _Step("results", self._clauses(_of(SweepTarget.RESULTS)))]
        self._steps += [_Step(state.value, self._state(state)) for state in ENDED]
        keys = _of(SweepTarget.KEYS), SweepClause(target=SweepTarget.KEYS, max_count=settings.keys)
        self._steps.append(_Step("keys", self._clauses(*keys)))
        if backend.ticks is not None:
            self._steps.append(_Step("ticks", self._clauses(_ticks(settings))))
        if backend.policies is not None:
            self._steps.append(_Step("tenants", self._clauses(_of(SweepTarget.TENANTS))))
        if backend.archive is not None:
            self._steps.append(_Step("removals", self._forget_removals(backend.archive)))
        if backend.tidy is not None:
            self._steps.append(_Step("days", self._days(backend.tidy)))

    def between(self, job_of: Callable[[Settlement], Leased | None]) -> HardBounds:
        """What keeps the hard bounds between two runs."""
        self._between = HardBounds(self._backend, self._clock, self._observers, self._sweeper, job_of)
        return self._between

    def ended(self, state: JobState, count: int) -> None:
        """Note jobs that no trip has ended."""
        if self._between is not None:
            self._between.ended(state, count)

    async def run(self) -> None:
        """Sweep until cancelled. What this worker is not allowed to do is tried less and less often."""
        while True:
            await self._rest(self._every * (0.75 + self._rng.random() / 2))
            await self.sweep()

    async def _rest(self, seconds: float) -> None:
        """Wait for so long. Meanwhile make room for what has ended whenever that is asked for."""
        if self._between is None:
            await asyncio.sleep(seconds)
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            look = min(until, loop.time() + self._look_every)
            try:
                async with asyncio.timeout_at(look):
                    await self._between.called.wait()
            except TimeoutError:
                if look == until:
                    return
                await self._between.sweep_all()
            else:
                await self._between.catch_up()

    async def sweep(self) -> int:
        """Run all steps once; returns how much they removed. Raises nothing: what failed is reported and runs again."""
        self._situation, self._done, self._kept, self._allowed = None, [], {}, set()
        removed = {step.name: await self._attempt(step) for step in self._steps if step.is_due()}
        if any(removed.values()):
            log.info("swept %s", ", ".join(f"{count} from {target}" for target, count in removed.items() if count))
        else:
            log.debug("a sweep found nothing to remove")
        self._warn([step for step in self._steps if step.problem and step.failures >= _FAILURES])
        await self._note()
        if self._between is not None:
            await self._between.note()
        return sum(removed.values())

    def _warn(self, failing: Sequence[_Step]) -> None:
        """One alert for all steps that fail together, as when the store is away."""
        if failing:
            names = ", ".join(dict.fromkeys(step.name for step in failing))
            problem = failing[0].problem
            sentence = f"{_FAILURES} or more sweeps of {names} failed in a row, and old records pile up: {problem}"
            self._observers.alert(Alert.CLEANUP_FAILING, names, sentence, error=problem, again_in=self._every)

    async def _attempt(self, step: _Step) -> int:
        step.problem = None
        began = moment()
        try:
            removed = await step.run()
        except Unavailable as error:
            step.problem = error
        except ConfigError as error:
            if not step.forbidden:
                log.warning("this worker is not allowed to sweep %s: %s", step.name, error)
            step.forbidden += 1
            step.rest = min(2**step.forbidden, _SELDOM) - 1
            return 0
        except Exception as error:
            log.exception("a sweep of %s failed; it is tried again", step.name)
            step.problem = error
        else:
            step.failures = step.forbidden = 0
            if self._observers.meter is not None:
                self._observers.meter.upkeep.swept(step.name, moment() - began, self._clock.now() / 1e6)
            return removed
        self._failed(step.problem)
        step.failures += 1
        return 0

    # -- steps

    async def _look(self) -> int:
        """Read the rules."""
        situation = self._situation = await self._sweeper.look()
        if self._between is not None:
            self._between.update(situation)
        if self._marks_until <= situation.now or self._bounds != situation.bounds:
            self._marks, self._marks_until, self._bounds = {}, situation.now + _DAY, situation.bounds
        return 0

    async def _may_go(self, bounds: Bounds, situation: Situation) -> bool:
        """Whether what is too old of a state may go now."""
        state = bounds.state
        if stop := await self._sweeper.stop(bounds, situation):
            sentence = f"old {state.value} jobs were not deleted: {stop}"
            self._observers.alert(Alert.SAFETY_STOP, state.value, sentence, again_in=self._every)
            return False
        self._allowed.add(state)
        return True

    def _state(self, state: JobState) -> Callable[[], Awaitable[int]]:
        async def run() -> int:
            if (situation := self._situation) is None:
                return 0
            bounds = situation.bounds[state]
            by_age = await self._may_go(bounds, situation)
            removed = 0
            if bounds.scoped and by_age:
                for age in bounds.ages:
                    step, mark = await self._sweeper.sweep_past(bounds, situation, age, self._marks.get((state, age)))
                    self._marks[state, age] = mark
                    removed += self._did(step)
            clause = self._sweeper.clause(bounds, situation, by_age=by_age)
            step = await self._sweeper.sweep(clause)
            if step.kept is not None:
                self._kept[clause.target] = step.kept
            if clause.older_than is not None:
                step = replace(step, cutoff=situation.now - clause.older_than, retention=clause.older_than)
            return removed + self._did(step)

        return run

    def _clauses(self, *clauses: SweepClause) -> Callable[[], Awaitable[int]]:
        async def run() -> int:
            removed = 0
            for clause in clauses:
                step = await self._sweeper.sweep(clause)
                if step.deleted and clause.target is SweepTarget.KEYS and clause.max_count is not None:
                    self._tell_of_keys(step.deleted)
                removed += self._did(step)
            return removed

        return run

    def _tell_of_keys(self, freed: int) -> None:
        sentence = (
            f"{freed} keys of completed jobs were freed before their result_ttl ended, because more than "
            f"retention.keys = {self._settings.keys} outlive the records of their jobs; their jobs can be enqueued "
            "again"
        )
        self._observers.alert(Alert.KEYS_FREED, "", sentence)

    def _days(self, tidy: Tidy) -> Callable[[], Awaitable[int]]:
        async def run() -> int:
            situation = self._situation
            clauses = [] if situation is None else [
                clause for state in ENDED if state in self._allowed
                if (clause := _day_clause(situation.bounds[state], situation)) is not None
            ]  # fmt: skip
            gone = await tidy(clauses, self._clock.stamp())
            for target, count in gone.items():
                if count:
                    self._observers.tell(Event(EventKind.SWEPT, detail=f"{count} from {target.value}", count=count))
            ages = {clause.target: clause.older_than for clause in clauses}
            return sum(self._did(self._dropped(target, count, ages.get(target))) for target, count in gone.items())

        return run

    def _dropped(self, target: SweepTarget, count: int, age: int | None) -> Step:
        kept = self._kept.get(target)
        step = Step(target=target.value, deleted=count, kept=None if kept is None else max(0, kept - count))
        if age is None or self._situation is None:
            return step
        return replace(step, cutoff=self._situation.now - age, retention=age)

    def _forget_removals(self, archive: ArchiveStore) -> Callable[[], Awaitable[int]]:
        async def run() -> int:
            while await archive.forget_removals(self._settings.removals, _STEP) == _STEP:
                pass
            return 0

        return run

    def _did(self, step: Step) -> int:
        if step.deleted:
            self._done.append(step)
        return step.deleted

    async def _note(self) -> None:
        """Log what this run deleted, and that all was in order."""
        if self._situation is None or self._sweeper.papers is None:
            return
        try:
            await self._witness(self._situation, self._sweeper.papers)
            if self._done:
                await self._log(self._situation, self._sweeper.papers)
        except (Unavailable, ConfigError) as error:
            log.warning("what retention did could not be noted: %s", error)

    async def _witness(self, situation: Situation, papers: Papers) -> None:
        """Remember that all was in order. If the clock is odd, it takes all states to say so: one that has nothing old
        is no witness for the others."""
        last = situation.last
        if not self._allowed or (self._allowed != set(ENDED) and self._sweeper.is_odd(situation)):
            return
        allowed = [situation.bounds[state] for state in self._allowed]
        seen = witness(situation.now, allowed, last)
        if last.ages != seen.ages or seen.at - last.at > min(_HOUR, self._gap // 4):
            await papers.save_last(seen)

    async def _log(self, situation: Situation, papers: Papers) -> None:
        if (old := sum(step.deleted for step in self._done if step.retention is not None)) > _MANY:
            sentence = f"{old:,} records were deleted in one run because of their age; see 'headrace janitor log'"
            self._observers.alert(Alert.MANY_DELETED, "", sentence)
        await papers.log(Run(at=situation.now, by=WORKERS, steps=tuple(self._done)), add_up=True)


def _of(target: SweepTarget) -> SweepClause:
    return SweepClause(target=target)


def _ticks(settings: RetentionSettings) -> SweepClause:
    keep = settings.ticks
    age = None if keep.age is None else micros(keep.age)
    return SweepClause(target=SweepTarget.TICKS, older_than=age, max_count=keep.count, max_bytes=keep.bytes)


def _day_clause(bounds: Bounds, situation: Situation) -> SweepClause | None:
    """What whole days may go by. They stay for an hour more than they must: until then, what was archived is as it was
    when somebody looked."""
    age = bounds.whole_days()
    if age is not None and (ended_by := situation.ended_by.get(bounds.state)) is not None:
        age = max(age, situation.now - ended_by + _HOUR)
    return None if age is None else SweepClause(target=SweepTarget(bounds.state.value), older_than=age)


class _Step:
    """One thing to do on each beat, and how it went last time."""

    def __init__(self, name: str, run: Callable[[], Awaitable[int]]) -> None:
        self.name = name
        self.run = run
        self.problem: Exception | None = None
        """The error of the last run."""
        self.failures = 0
        """In a row."""
        self.forbidden = 0
        """How often in a row this worker was not allowed to do it."""
        self.rest = 0
        """Beats to skip."""

    def is_due(self) -> bool:
        """Whether it is to run on this beat."""
        if not self.rest:
            return True
        self.rest -= 1
        return False
