"""A duty of every worker: make a job for every sheet that is due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from random import Random

from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.errors import ConfigError, Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Row
from headrace.seam.tracks import Sheet, TrackStore
from headrace.text import shown

log = logging.getLogger("headrace")

MakeRow = Callable[[Sheet], Row]
"""The job that visits a sheet."""
_HOLD = 300_000_000
"""A sheet whose job was made is looked at again after this long, unless it was visited. While the job lives, its key
keeps a second one out. If it is gone, such as cancelled or dead, another one is made."""
_PAGE = 200
_AGAIN = 1.0
"""Seconds after which a store that did not answer is asked again."""


class TrackPlanner:
    """Looks for sheets that are due, on a jittered beat and when the next one is known to be.

    It needs no leader. Of several planners one gets a sheet. It stores the job under a key that names the sheet, and
    the job names the visit: one that was made twice finds that the visit is done.
    """

    def __init__(
        self,
        tracks: TrackStore,
        backend: Backend,
        trackers: Mapping[str, MakeRow],
        clock: Clock,
        rng: Random,
        observers: Observers,
        *,
        every: float,
    ) -> None:
        self._tracks = tracks
        self._backend = backend
        self._trackers = trackers
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._every = every
        self._forbidden = False

    async def run(self) -> None:
        """Look until cancelled, the first time at once."""
        while True:
            await asyncio.sleep(await self.look())

    async def look(self) -> float:
        """Make the jobs of all sheets that are due, if the store allows it; seconds until the next look."""
        pause = self._every * (0.75 + self._rng.random() / 2)
        try:
            for tracker, make in self._trackers.items():
                next_in = await self._plan(tracker, make)
                if next_in is not None:
                    pause = min(pause, max(next_in / 1e6, 0.0) + self._rng.random() / 10)
        except Unavailable:
            return _AGAIN
        except ConfigError as error:
            if not self._forbidden:
                log.warning("this worker is not allowed to make the jobs of trackers: %s", error)
            self._forbidden = True
        except Exception as error:
            log.exception("making the jobs of trackers failed; it is tried again")
            self._observers.tell(Event(EventKind.ERROR, error=error, detail="jobs of trackers"))
        return pause

    async def _plan(self, tracker: str, make: MakeRow) -> int | None:
        while True:
            due = await self._tracks.due(tracker, _PAGE, _HOLD, self._clock.stamp())
            rows = self._rows(tracker, make, [sheet for sheet in due.sheets if sheet.subjects])
            most = self._backend.limits.max_batch
            for start in range(0, len(rows), most):
                await self._backend.insert(rows[start : start + most], self._clock.stamp())
            if len(due.sheets) < _PAGE:
                return due.next_in

    def _rows(self, tracker: str, make: MakeRow, sheets: Sequence[Sheet]) -> list[Row]:
        rows = []
        for sheet in sheets:
            try:
                rows.append(make(sheet))
            except ConfigError as error:
                log.warning("tracker %s: a sheet is not visited: %s", shown(tracker), error)
        return rows
