"""Hard bounds between two runs of retention: a worker makes room before it stores what has ended."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy

from msgspec import Struct

from headrace.core.alerts import Alert
from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.errors import ConfigError, HeadraceError
from headrace.keeping.bounds import ENDED, Bounds
from headrace.keeping.sweeper import Situation, Sweeper
from headrace.seam.protocol import Backend
from headrace.seam.records import Leased, Settlement, SweepClause, SweepTarget
from headrace.types import JobState

log = logging.getLogger("headrace")

_STEP = 100
"""A worker looks whenever it has added a hundredth of a bound."""
_TRIP = 50
"""One trip adds no more than a fiftieth of a bound, so that those of several workers do not exceed it by much."""
_TRIES = 200
_PAUSE = 0.02
"""Seconds that it leaves to another process which is making room."""
_REST = 60.0
"""Seconds until it tries again after an error; the duty reports it meanwhile."""


class _Load(Struct):
    """What has ended in one state since the last look."""

    count: int = 0
    bytes: int = 0


Loads = dict[JobState, _Load]


class HardBounds:
    """Keeps the number and the bytes of ended jobs within their bounds at every moment, not only after a sweep.

    Before a trip carries ends to the store that add up to a hundredth of a bound, the oldest are removed until there is
    room for them. The trip waits for that, so a flood of failures is no faster than its removal. Where others make room
    at the same time, each leaves a hundredth free, and no trip adds more than a fiftieth of a bound. So a bound is
    exceeded by about one fiftieth for each further worker.

    Completed and cancelled jobs that ended a moment ago are spared, as an enqueue may be repeated: they may exceed
    their bounds for that long.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        observers: Observers,
        sweeper: Sweeper,
        job_of: Callable[[Settlement], Leased | None],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._observers = observers
        self._sweeper = sweeper
        self._job_of = job_of
        self._situation: Situation | None = None
        self._loads = {state: _Load() for state in ENDED}
        self._under_way = {state: _Load() for state in ENDED}
        """What room was made for, and the store has not answered."""
        self._one_at_a_time = asyncio.Lock()
        self._rests_until = 0.0

    def update(self, situation: Situation) -> None:
        """The rules as they are now."""
        self._situation = situation

    def weigh(self, batch: Sequence[Settlement]) -> tuple[int, Loads]:
        """How many of these ends, from the first, one trip may carry, and what they weigh."""
        loads, bounds = self._weight_of(batch), self._bounds()
        if not any(_is_much(load, bounds[state]) for state, load in loads.items()):
            return len(batch), loads
        loads = {}
        for position, settlement in enumerate(batch):
            for state, load in self._weight_of([settlement]).items():
                found = loads.get(state, _Load())
                found = _Load(found.count + load.count, found.bytes + load.bytes)
                if position and _is_much(found, bounds[state]):
                    return position, loads
                loads[state] = found
        return len(batch), loads

    def _weight_of(self, batch: Sequence[Settlement]) -> Loads:
        loads: Loads = {}
        for settlement in batch:
            state = settlement.state
            if settlement.keep and state in ENDED:
                load = loads.get(state)
                if load is None:
                    load = loads[state] = _Load()
                load.count += 1
                load.bytes += _weight(settlement, self._job_of(settlement))
        return loads

    async def make_room(self, loads: Loads) -> None:
        """Make room for what weighs so much, if it may be needed; ``stored`` is to be told the same. Raises nothing:
        the bounds are the duty's as well."""
        for state, load in loads.items():
            for total in (self._loads[state], self._under_way[state]):
                total.count += load.count
                total.bytes += load.bytes
        now = asyncio.get_running_loop().time()
        if now >= self._rests_until and any(self._is_due(one) for one in self._bounds().values()):
            await self._sweep_due(now)

    async def _sweep_due(self, now: float) -> None:
        try:
            situation = self._situation or await self._sweeper.look()
            self._situation = situation
            async with self._one_at_a_time:
                for one in situation.bounds.values():
                    if self._is_due(one):
                        await self._sweep(one, situation)
        except ConfigError as error:
            self._rests_until = math.inf
            log.debug("this worker may not make room for jobs that have ended: %s", error)
        except HeadraceError as error:
            self._rests_until = now + _REST
            log.warning("no room could be made for jobs that have ended; it is tried again: %s", error)

    def stored(self, loads: Loads) -> None:
        """The store has answered for these, or never will."""
        for state, load in loads.items():
            self._under_way[state].count -= load.count
            self._under_way[state].bytes -= load.bytes

    def _bounds(self) -> Mapping[JobState, Bounds]:
        return self._sweeper.defaults if self._situation is None else self._situation.bounds

    def _is_due(self, bounds: Bounds) -> bool:
        load = self._loads[bounds.state]
        by_count = bounds.count is not None and load.count * _STEP >= max(bounds.count, 1)
        by_bytes = bounds.bytes is not None and load.bytes * _STEP >= max(bounds.bytes, 1)
        return load.count > 0 and (by_count or by_bytes)

    async def _sweep(self, bounds: Bounds, situation: Situation) -> None:
        state, load = bounds.state, copy(self._loads[bounds.state])
        coming = self._under_way[state]
        clause = SweepClause(
            target=SweepTarget(state.value),
            max_count=None if bounds.count is None else max(0, bounds.count - max(coming.count, bounds.count // _STEP)),
            max_bytes=None if bounds.bytes is None else max(0, bounds.bytes - max(coming.bytes, bounds.bytes // _STEP)),
            spare=self._sweeper.spare_of(bounds),
            ended_by=situation.ended_by.get(state),
        )
        removed = 0
        for _ in range(_TRIES):
            swept = await self._backend.sweep(clause, self._clock.stamp())
            removed += swept.removed
            if not swept.more:
                over = clause.max_count is not None and swept.kept > clause.max_count
                if not over or swept.removed or state is not JobState.FAILED or clause.ended_by is not None:
                    break
                await asyncio.sleep(_PAUSE)
        self._loads[state].count -= load.count
        self._loads[state].bytes -= load.bytes
        if removed:
            self._tell(bounds, removed)

    def _tell(self, bounds: Bounds, removed: int) -> None:
        target = bounds.state.value
        self._observers.tell(Event(EventKind.SWEPT, detail=f"{removed} from {target}", count=removed))
        if bounds.state is JobState.FAILED:
            most = f"{bounds.count:,} jobs" if bounds.count is not None else "any number of jobs"
            size = f"{bounds.bytes:,} bytes" if bounds.bytes is not None else "any number of bytes"
            sentence = f"dead letters are at their bound of {most} and {size}: the oldest of those who have most go"
            self._observers.alert(Alert.DEAD_LETTERS_FULL, "", sentence)


def _is_much(load: _Load, bounds: Bounds) -> bool:
    by_count = bounds.count is not None and load.count * _TRIP > bounds.count
    return by_count or (bounds.bytes is not None and load.bytes * _TRIP > bounds.bytes)


def _weight(settlement: Settlement, job: Leased | None) -> int:
    """Roughly the bytes that a job takes up."""
    cells = 0 if job is None else sum(map(len, job.cells.values()))
    return cells + len(settlement.error or b"") + len(settlement.result or b"") + 100
