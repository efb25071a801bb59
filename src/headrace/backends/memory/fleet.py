"""Workers that beat, and the last time in which there was none."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import NamedTuple

from headrace.seam.records import Beat, WorkerStats


class Listed(NamedTuple):
    """A worker, as its last beat left it."""

    stats: WorkerStats
    until: int
    """How long it is listed without another beat."""
    steady_since: int


class Absence:
    """From the last beat of a fleet that was at work to the first one after it, no worker was listed."""

    def __init__(self) -> None:
        self._at_work_since = 0
        self._begins = 0
        self._ends = 0

    def look(self, workers: Mapping[str, Listed], beat: Beat, now: int) -> None:
        """A worker beats that was not listed. Was anybody?"""
        last = nlargest(2, workers.items(), key=lambda item: (item[1].until, item[0].encode()))
        if last and last[0][1].until > now:
            return
        seen = [listed.stats.seen_at for _, listed in last]
        together = len(seen) > 1 and max(seen) - min(seen) <= beat.gap
        if together and max(seen) - self._at_work_since >= beat.at_work:
            self._begins, self._ends = max(seen), now
        self._at_work_since = now

    def spares(self, lease_until: int) -> bool:
        """Whether a lease expired in that time."""
        return self._begins < lease_until <= self._ends
