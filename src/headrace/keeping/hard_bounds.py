"""Hard bounds between two runs of retention: a worker makes room before it stores what has ended."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy

from msgspec import Struct

from headrace.core.alerts import Alert
from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.errors import ConfigError, HeadraceError
from headrace.keeping.bounds import ENDED, Bounds
from headrace.keeping.papers import WORKERS, Run, Step, add
from headrace.keeping.sweeper import Situation, Sweeper
from headrace.seam.protocol import Backend
from headrace.seam.records import Leased, Settlement, SweepClause, SweepTarget
from headrace.types import JobState

log = logging.getLogger("headrace")

_STEP = 100
"""All workers together add a hundredth of a bound before they make room."""
_SOFT_STEP = 20
"""Of completed and cancelled jobs: a twentieth."""
_TRIP = 50
"""One trip of each worker at the same time adds a fiftieth of a bound."""
_UNKNOWN = 20
"""Workers that there may be before anybody has looked."""
_FRESH = 5.0
"""Seconds for which their number counts."""
_TRIES = 200
_PAUSE = 0.02
"""Seconds that it leaves to another process which is making room."""
_NOTE = 10.0
"""Seconds between two notes of what went, at least."""
_REST = 60.0
"""Seconds until it tries again after an error; the duty reports it meanwhile."""
_SOON = 1.0
"""Seconds until the duty looks after completed and cancelled jobs, at most …"""
_PART = 60
"""… and which part of the time for which they may be more than their bound."""


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
    others make room at the same time, each leaves a hundredth free, and what a trip adds is a share of a fiftieth of
    the bound: the more workers are listed, the smaller. So they exceed it by a few hundredths, however many they are,
    as long as it is at least ten jobs for each of them.

    Completed and cancelled jobs that ended a moment ago are spared, as an enqueue may be repeated: they may exceed
    their bounds for that long. So no trip waits for their removal: ``called`` asks the duty for it, earlier than it
    would come by itself, but at most once a second, or in a sixtieth of that time: a fast drain would ask many times a
    second for what no sweep may remove yet. Dead letters that come from a reap, not from a trip, are asked for at once.
    Nobody reports the jobs that people cancel: the duty looks after all states when the spared ones have become due
    (``sweep_all``).
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
        self._workers = self._found = _UNKNOWN
        """How many there are: the most of the last two counts, as others may have started a moment ago."""
        self._counted_at = -math.inf
        self._counts = False
        """Whether the duty is to count the workers."""
        self._asked: set[JobState] = set()
        """States that the duty is to look after."""
        self._coming: set[JobState] = set()
        """States that it is to look after soon."""
        self._loads = {state: _Load() for state in ENDED}
        self._under_way = {state: _Load() for state in ENDED}
        """What room was made for, and the store has not answered."""
        self.called = asyncio.Event()
        """Set when the duty is to ``catch_up``."""
        self._one_at_a_time = asyncio.Lock()
        self._rests_until = 0.0
        self._gone: dict[JobState, Step] = {}
        """What went since the last note in the log."""
        self._noted_at = -math.inf

    def update(self, situation: Situation) -> None:
        """The rules as they are now."""
        self._situation = situation

    def weigh(self, batch: Sequence[Settlement]) -> tuple[int, Loads]:
        """How many of these ends, from the first, one trip may carry, and what they weigh. Of completed and cancelled
        jobs, one is weighed for all: every trip is weighed, so this must be cheap."""
        loads: Loads = {}
        most = len(batch)
        states = {one.state for one in batch}
        if JobState.FAILED in states:
            most, loads[JobState.FAILED] = self._weigh_failures(batch)
        for state in _SOFT:
            if state in states and (ended := [one for one in batch[:most] if one.state is state and one.keep]):
                one = ended[-1]
                loads[state] = _Load(len(ended), len(ended) * _weight(one, self._job_of(one)))
        return most, loads

    def _weigh_failures(self, batch: Sequence[Settlement]) -> tuple[int, _Load]:
        bounds, load = self._bounds()[JobState.FAILED], _Load()
        for position, one in enumerate(batch):
            if one.state is JobState.FAILED and one.keep:
                more = _Load(load.count + 1, load.bytes + _weight(one, self._job_of(one)))
                if position and _is_much(more, bounds, _TRIP * self._workers):
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
        for state in _SOFT:
            if state in loads and self._is_due(bounds[state]):
                self._call_soon(bounds[state])
        if JobState.FAILED in loads and self._is_due(bounds[JobState.FAILED]):
            self._call_to_count()
            await self._sweep_states((JobState.FAILED,), only_due=True)

    def ended(self, state: JobState, count: int) -> None:
        """Note jobs that have ended otherwise than by a trip: reaped, or expired when they were claimed. Nobody knows
        what they weigh."""
        self._loads[state].count += count
        if state is JobState.FAILED:
            self._call(state)
        elif self._is_due(bounds := self._bounds()[state]):
            self._call_soon(bounds)

    def _call_soon(self, bounds: Bounds) -> None:
        state = bounds.state
        if state not in self._coming:
            self._coming.add(state)
            spared = self._sweeper.spare_of(bounds) / 1e6
            asyncio.get_running_loop().call_later(min(_SOON, spared / _PART), self._call, state)

    def _call(self, state: JobState) -> None:
        self._coming.discard(state)
        self._asked.add(state)
        if state is JobState.FAILED:
            self._call_to_count()
        self.called.set()

    def _call_to_count(self) -> None:
        """No trip waits for the number of workers: the duty finds it out meanwhile."""
        if asyncio.get_running_loop().time() - self._counted_at > _FRESH:
            self._counts = True
            self.called.set()

    async def catch_up(self) -> None:
        """Remove what is over its bounds of the states that the duty was called for. Raises nothing."""
        self.called.clear()
        asked, self._asked = self._asked, set()
        if asked:
            await self._sweep_states(asked)
        if self._counts:
            await self._count_workers()

    async def _count_workers(self) -> None:
        self._counts, self._counted_at = False, asyncio.get_running_loop().time()
        try:
            found = len((await self._backend.stats(self._clock.stamp(), queues=())).workers)
            self._workers, self._found = max(1, found, self._found), found
        except Exception as error:
            log.debug("the workers could not be counted; it is tried again: %s", error)

    async def sweep_all(self) -> None:
        """The same for all states."""
        await self._sweep_states(ENDED)

    async def _sweep_states(self, states: Collection[JobState], *, only_due: bool = False) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._rests_until:
            return
        try:
            self._situation = situation = await self._sweeper.look()  # there may be a vault by now
            async with self._one_at_a_time:
                for state in states:
                    if self._is_due(situation.bounds[state]) or not only_due:
                        await self._sweep(situation.bounds[state], situation)
        except ConfigError as error:
            self._rests_until = math.inf
            log.debug("this worker may not make room for jobs that have ended: %s", error)
        except Exception as error:
            self._rests_until = now + _REST
            unknown = not isinstance(error, HeadraceError)
            log.warning("no room could be made for ended jobs; it is tried again: %s", error, exc_info=unknown)
        if now - self._noted_at > _NOTE:
            await self.note()

    async def note(self) -> None:
        """Tell the janitor's log what went. Raises nothing."""
        if not self._gone or self._situation is None or self._sweeper.papers is None:
            return
        gone, self._gone = self._gone, {}
        self._noted_at = asyncio.get_running_loop().time()
        run = Run(at=self._situation.now, by=WORKERS, steps=tuple(gone.values()))
        try:
            await self._sweeper.papers.log(run, add_up=True)
        except Exception as error:
            log.debug("what went could not be noted; it is tried again: %s", error)
            for state, step in gone.items():
                self._count(state, step)

    def _count(self, state: JobState, step: Step) -> None:
        before = self._gone.get(state)
        self._gone[state] = step if before is None else add(before, step)

    def stored(self, loads: Loads) -> None:
        """The store has answered for these, or never will."""
        for state, load in loads.items():
            self._under_way[state].count -= load.count
            self._under_way[state].bytes -= load.bytes

    def _bounds(self) -> Mapping[JobState, Bounds]:
        return self._sweeper.defaults if self._situation is None else self._situation.bounds

    def _is_due(self, bounds: Bounds) -> bool:
        step = _SOFT_STEP if bounds.state in _SOFT else _STEP
        return _is_much(self._loads[bounds.state], bounds, step * self._workers)

    async def _sweep(self, bounds: Bounds, situation: Situation) -> None:
        if bounds.count is None and bounds.bytes is None:
            return
        state, load = bounds.state, copy(self._loads[bounds.state])
        coming = self._under_way[state]
        clause = SweepClause(
            target=SweepTarget(state.value),
            max_count=None
            if bounds.count is None
            else max(0, bounds.count - max(coming.count, self._free(bounds.count))),
            max_bytes=None if bounds.bytes is None else max(0, bounds.bytes - max(coming.bytes, bounds.bytes // _STEP)),
            spare=self._sweeper.spare_of(bounds),
            ended_by=situation.ended_by.get(state),
        )
        removed = 0
        for _ in range(_TRIES):
            swept = await self._backend.sweep(clause, self._clock.stamp())
            removed += swept.removed
            if swept.removed:
                self._count(state, Step(target=state.value, deleted=swept.removed, bytes=swept.bytes, kept=swept.kept))
            if not swept.more:
                over = clause.max_count is not None and swept.kept > clause.max_count
                if not over or swept.removed or state is not JobState.FAILED or clause.ended_by is not None:
                    break
                await asyncio.sleep(_PAUSE)
        self._loads[state].count -= load.count
        self._loads[state].bytes -= load.bytes
        if removed:
            self._tell(bounds, removed)

    def _free(self, count: int) -> int:
        """How many jobs to leave room for besides: a hundredth, but one of each worker if the bound is small."""
        return max(count // _STEP, min(self._workers, count // 10))

    def _tell(self, bounds: Bounds, removed: int) -> None:
        target = bounds.state.value
        self._observers.tell(Event(EventKind.SWEPT, detail=f"{removed} from {target}", count=removed))
        if bounds.state is JobState.FAILED:
            most = f"{bounds.count:,} jobs" if bounds.count is not None else "any number of jobs"
            size = f"{bounds.bytes:,} bytes" if bounds.bytes is not None else "any number of bytes"
            sentence = f"dead letters are at their bound of {most} and {size}: the oldest of those who have most go"
            self._observers.alert(Alert.DEAD_LETTERS_FULL, "", sentence)


def _is_much(load: _Load, bounds: Bounds, parts: int) -> bool:
    """Whether it is more than one of this many parts of a bound."""
    by_count = bounds.count is not None and load.count * parts > bounds.count
    return by_count or (bounds.bytes is not None and load.bytes * parts > bounds.bytes)


def _weight(settlement: Settlement, job: Leased | None) -> int:
    """Roughly the bytes that a job takes up."""
    cells = 0 if job is None else sum(map(len, job.cells.values()))
    return cells + len(settlement.error or b"") + len(settlement.result or b"") + 100
