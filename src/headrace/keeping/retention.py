"""A duty of every worker: keep what has ended within its bounds of age, count and bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from headrace.core.alerts import Alert
from headrace.core.clock import Clock
from headrace.core.config import Keep, RetentionSettings
from headrace.core.durations import micros
from headrace.core.events import Event, EventKind, Observers
from headrace.core.slow_calls import timed
from headrace.errors import ConfigError, Unavailable
from headrace.seam.protocol import Backend, Tidy
from headrace.seam.records import Place, SweepClause

log = logging.getLogger("headrace")

_FAILURES = 3
"""Failures of a step in a row that raise an alert."""
_SELDOM = 64
"""The most beats between two tries of a step that this worker is not allowed to do."""


class Retention:
    """Sweeps every place on a jittered beat, in small steps, until each is within its bounds; then lets the store tidy
    up, if it needs that. A step that fails does not stop the others.

    Between steps it rests for as long as the last one took, so that a long backlog leaves half of the store's time to
    other work.
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
    ) -> None:
        """``spare``: what ended more recently than this stays, in microseconds."""
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._every = micros(settings.every) / 1e6
        self._keys = settings.keys
        self._clauses = [
            SweepClause(place=Place.RESULTS),
            _clause(Place.COMPLETED, settings.completed, spare),
            _clause(Place.CANCELLED, settings.cancelled, spare),
            _clause(Place.FAILED, settings.failed, spare),
            SweepClause(place=Place.KEYS),
            SweepClause(place=Place.KEYS, max_count=settings.keys),
            *([] if backend.ticks is None else [_clause(Place.TICKS, settings.ticks)]),
            *([] if backend.policies is None else [SweepClause(place=Place.TENANTS)]),
        ]
        self._steps = [_Step(clause.place.value, self._sweeper(clause)) for clause in self._clauses]
        if backend.tidy is not None:
            self._steps.append(_Step("days", self._tidier(backend.tidy)))

    async def run(self) -> None:
        """Sweep until cancelled. What this worker is not allowed to do is tried less and less often."""
        while True:
            await asyncio.sleep(self._every * (0.75 + self._rng.random() / 2))
            await self.sweep()

    def _tell_of_keys(self, freed: int) -> None:
        sentence = (
            f"{freed} keys of completed jobs were freed before their result_ttl ended, because more than "
            f"retention.keys = {self._keys} outlive the records of their jobs; their jobs can be enqueued again"
        )
        self._observers.alert(Alert.KEYS_FREED, "", sentence)

    async def sweep(self) -> int:
        """Run all steps once; returns how much they removed. Raises nothing: what failed is reported and runs again."""
        removed = {step.name: await self._attempt(step) for step in self._steps if step.is_due()}
        if any(removed.values()):
            log.info("swept %s", ", ".join(f"{count} from {place}" for place, count in removed.items() if count))
        else:
            log.debug("a sweep found nothing to remove")
        self._warn([step for step in self._steps if step.problem and step.failures == _FAILURES])
        return sum(removed.values())

    def _warn(self, failing: Sequence[_Step]) -> None:
        """One alert for all steps that fail together, as when the store is away."""
        if failing:
            names = ", ".join(dict.fromkeys(step.name for step in failing))
            problem = failing[0].problem
            sentence = f"{_FAILURES} sweeps of {names} failed in a row, and old records pile up: {problem}"
            self._observers.alert(Alert.CLEANUP_FAILING, names, sentence, error=problem)

    async def _attempt(self, step: _Step) -> int:
        step.problem = None
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
            return removed
        step.failures += 1
        return 0

    def _sweeper(self, clause: SweepClause) -> Callable[[], Awaitable[int]]:
        async def run() -> int:
            loop = asyncio.get_running_loop()
            removed, more = 0, True
            while more:
                began = loop.time()
                swept = await timed(self._observers, "sweep", self._backend.sweep(clause, self._clock.stamp()))
                removed += self._tell(clause.place, swept.removed)
                if swept.removed and clause.place is Place.KEYS and clause.max_count is not None:
                    self._tell_of_keys(swept.removed)
                if more := swept.more:
                    await asyncio.sleep(loop.time() - began)
            return removed

        return run

    def _tidier(self, tidy: Tidy) -> Callable[[], Awaitable[int]]:
        async def run() -> int:
            gone = await tidy(self._clauses, self._clock.stamp())
            return sum(self._tell(place, count) for place, count in gone.items())

        return run

    def _tell(self, place: Place, removed: int) -> int:
        if removed:
            detail = f"{removed} from {place.value}"
            self._observers.tell(Event(EventKind.SWEPT, detail=detail, count=removed))
        return removed


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


def _clause(place: Place, keep: Keep, spare: int = 0) -> SweepClause:
    """With a count of 0 nothing is kept, not even what is spared otherwise."""
    return SweepClause(
        place=place,
        older_than=micros(keep.age),
        max_count=keep.count,
        max_bytes=keep.bytes,
        spare=spare if keep.count else 0,
    )
