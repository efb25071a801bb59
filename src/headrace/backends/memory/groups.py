"""Groups: which of their jobs are called."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from headrace.backends.memory.entry import Entry
from headrace.seam.records import JobId
from headrace.types import JobState

SweepTarget = tuple[int, JobId]
"""run_at, id: the order in which jobs of a group are called."""


class Group:
    """The AVAILABLE and RUNNING jobs of one group in one queue: the called ones, and those in line."""

    __slots__ = ("called", "line")

    def __init__(self) -> None:
        self.called: dict[JobId, Entry] = {}
        self.line: list[SweepTarget] = []

    def enter(self, entry: Entry) -> None:
        """Add an AVAILABLE job; it stays called if it kept its call."""
        if entry.id not in self.called and not self._stands(entry):
            insort(self.line, (entry.run_at, entry.id))

    def leave(self, entry: Entry) -> None:
        """Remove a job that is no longer AVAILABLE or RUNNING, or that has to be called again."""
        if self.called.pop(entry.id, None) is None and self._stands(entry):
            del self.line[bisect_left(self.line, (entry.run_at, entry.id))]

    def _stands(self, entry: Entry) -> bool:
        place = (entry.run_at, entry.id)
        return self.line[bisect_left(self.line, place) :][:1] == [place]

    def send_back(self, most: int) -> Iterator[Entry]:
        """Called jobs that must wait again: an earlier job takes the call, or too many are called."""
        while (last := self._last(most)) is not None:
            place = (last.run_at, last.id)
            if len(self.called) <= most and (not self.line or place < self.line[0]):
                return
            del self.called[last.id]
            insort(self.line, place)
            yield last

    def _last(self, most: int) -> Entry | None:
        """The last of the called jobs that may lose their call. Where only one may be called, a job that was leased
        keeps its call, unless several have one."""
        waiting = [e for e in self.called.values() if e.state is JobState.AVAILABLE]
        free = [e for e in waiting if most > 1 or e.epoch == 0] or (waiting if len(self.called) > most else [])
        return max(free, key=lambda e: (e.run_at, e.id), default=None)

    def next(self, most: int) -> JobId | None:
        """The first in line, if it can be called."""
        return self.line.pop(0)[1] if self.line and len(self.called) < most else None
