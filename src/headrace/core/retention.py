"""A duty of every worker: keep what has ended within its bounds of age, count and bytes."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from headrace.config import Keep, RetentionSettings
from headrace.core.alerts import Alert
from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.durations import micros
from headrace.errors import ConfigError, Unavailable
from headrace.protocol import Backend
from headrace.records import Place, SweepClause

log = logging.getLogger("headrace")

_FAILURES = 3
"""Sweeps that fail in a row until somebody should look at it."""
_SELDOM = 64
"""Beats between two tries of a worker that may not sweep, in the end."""


class Retention:
    """Sweeps every place on a jittered beat, in small steps, until each is within its bounds.

    Between steps it rests for as long as the last one took: a long backlog leaves half of the store to other work.
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
        """``spare``: what ended less than so long ago stays, in microseconds."""
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

    async def run(self) -> None:
        """Sweep until cancelled. One who may not looks more and more seldom whether he may by now."""
        failures = forbidden = 0
        while True:
            await asyncio.sleep(self._every * min(2**forbidden, _SELDOM) * (0.75 + self._rng.random() / 2))
            problem: Exception
            try:
                await self.sweep()
            except Unavailable as error:
                problem = error
            except ConfigError as error:
                if not forbidden:
                    log.warning("this worker does not sweep: %s", error)
                forbidden += 1
                continue
            except Exception as error:
                log.exception("a sweep failed; the next one comes")
                problem = error
            else:
                failures = forbidden = 0
                continue
            failures += 1
            if failures == _FAILURES:
                self._warn(problem)

    def _warn(self, error: Exception) -> None:
        sentence = f"{_FAILURES} sweeps in a row failed, and what has ended piles up: {error}"
        self._observers.alert(Alert.CLEANUP_FAILING, "", sentence, error=error)

    def _tell_of_keys(self, freed: int) -> None:
        sentence = (
            f"{freed} keys of completed jobs were freed before their result_ttl was over, as more than retention.keys ="
            f" {self._keys} outlive the records of their jobs: their jobs may be enqueued again"
        )
        self._observers.alert(Alert.KEYS_FREED, "", sentence)

    async def sweep(self) -> int:
        """One run over all places; how much it removed."""
        swept_from: dict[str, int] = {}
        loop = asyncio.get_running_loop()
        for clause in self._clauses:
            more = True
            while more:
                began = loop.time()
                swept = await self._backend.sweep(clause, self._clock.stamp())
                if swept.removed:
                    place = clause.place.value
                    swept_from[place] = swept_from.get(place, 0) + swept.removed
                    self._observers.tell(
                        Event(EventKind.SWEPT, detail=f"{swept.removed} from {place}", count=swept.removed)
                    )
                    if clause.place is Place.KEYS and clause.max_count is not None:
                        self._tell_of_keys(swept.removed)
                if more := swept.more:
                    await asyncio.sleep(loop.time() - began)
        if swept_from:
            log.info("swept %s", ", ".join(f"{count} from {place}" for place, count in swept_from.items()))
        else:
            log.debug("a sweep found nothing to remove")
        return sum(swept_from.values())


def _clause(place: Place, keep: Keep, spare: int = 0) -> SweepClause:
    return SweepClause(
        place=place, older_than=micros(keep.age), max_count=keep.count, max_bytes=keep.bytes, spare=spare
    )
