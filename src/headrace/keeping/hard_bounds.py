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
"""A worker makes room whenever it has added a hundredth of a bound."""
_SOFT_STEP = 20
"""Of completed and cancelled jobs: a twentieth."""
_TRIP = 50
"""One trip adds no more than a fiftieth of a bound, so that those of several workers do not exceed it by much."""
_TRIES = 200
_PAUSE = 0.02
"""Seconds that it leaves to another process which is making room."""
_REST = 60.0
"""Seconds until it tries again after an error; the duty reports it meanwhile."""


_SOFT = (JobState.COMPLETED, JobState.CANCELLED)


class _Load(Struct):
    """What has ended in one state since the last look."""

    count: int = 0
    bytes: int = 0


Loads = dict[JobState, _Load]


class HardBounds:
    """Keeps the number and the bytes of ended jobs within their bounds at every moment, not only after a sweep.

    Before a trip carries failures to the store that add up to a hundredth of a bound, the oldest dead letters are
    removed until there is room. The trip waits for that, so a flood of failures is no faster than its removal. Where
    others make room at the same time, each leaves a hundredth free, and no trip adds more than a fiftieth of a bound.
    So a bound is exceeded by about one fiftieth for each further worker.

    Completed and cancelled jobs that ended a moment ago are spared, as an enqueue may be repeated: they may exceed
    their bounds for that long. So no trip waits for their removal: ``called`` asks the duty for it, earlier than it
    would come by itself.
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
        self.called = asyncio.Event()
        """Set when the duty is to ``catch_up``."""
        self._one_at_a_time = asyncio.Lock()
        self._rests_until = 0.0

    def update(self, situation: Situation) -> None:
        """The rules as they are now."""
        self._situation = situation

    def weigh(self, batch: Sequence[Settlement]) -> tuple[int, Loads]:
        """How many of these ends, from the first, one trip may carry, and what they weigh. Of completed and cancelled
        jobs, one is weighed for all: every trip is weighed, so this must be cheap."""
        loads: Loads = {}
        most = len(batch)
        if any(one.state is JobState.FAILED for one in batch):
            most, loads[JobState.FAILED] = self._weigh_failures(batch)
        for state in _SOFT:
            if ended := [one for one in batch[:most] if one.state is state and one.keep]:
                one = ended[-1]
                loads[state] = _Load(len(ended), len(ended) * _weight(one, self._job_of(one)))
        return most, loads

    def _weigh_failures(self, batch: Sequence[Settlement]) -> tuple[int, _Load]:
        bounds, load = self._bounds()[JobState.FAILED], _Load()
        for position, one in enumerate(batch):
            if one.state is JobState.FAILED and one.keep:
                more = _Load(load.count + 1, load.bytes + _weight(one, self._job_of(one)))
                if position and _is_much(more, bounds):
                    return position, load
                load = more
        return len(batch), load

    async def make_room(self, loads: Loads) -> None:
        """Make room for what weighs so much, if it may be needed; ``stored`` is to be told the same. Raises nothing:
        the bounds are the duty's as well."""
        for state, load in loads.items():
            for total in (self._loads[state], self._under_way[state]):
                total.count += load.count
                total.bytes += load.bytes
        bounds = self._bounds()
        if any(self._is_due(bounds[state]) for state in _SOFT if state in loads):
            self.called.set()
        if JobState.FAILED in loads and self._is_due(bounds[JobState.FAILED]):
            await self._sweep_due((JobState.FAILED,))

    async def catch_up(self) -> None:
        """Remove the completed and cancelled jobs that are over their bounds. Raises nothing."""
        self.called.clear()
        await self._sweep_due(_SOFT)

    async def _sweep_due(self, states: Sequence[JobState]) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._rests_until:
            return
        try:
            self._situation = situation = await self._sweeper.look()  # there may be a vault by now
            async with self._one_at_a_time:
                for state in states:
                    if self._is_due(situation.bounds[state]):
                        await self._sweep(situation.bounds[state], situation)
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
        load, step = self._loads[bounds.state], _SOFT_STEP if bounds.state in _SOFT else _STEP
        by_count = bounds.count is not None and load.count * step >= max(bounds.count, 1)
        by_bytes = bounds.bytes is not None and load.bytes * step >= max(bounds.bytes, 1)
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
