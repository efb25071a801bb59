"""Counts what a process does, at a cost that its jobs hardly feel: what metrics are made of.

Observers get an event for each start and each end, which costs a quick job a third of its time. A meter gets one call
for each end. While jobs of less than a millisecond wait in line, it times one in eight, which stands for the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from time import perf_counter

from headrace.core.clock import Clock
from headrace.core.histogram import Histogram
from headrace.core.upkeep import MOST, OTHER, Upkeep
from headrace.seam.records import Leased

SIZES = (0.0, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1_000.0)
_MICRO = 1e-6
_QUICK, _SKIPPED = 0.001, 7
"""After a job that took less than so many seconds, this many are counted but not timed."""
_LATELY = 1.0
"""Seconds after which the two clocks are compared again."""


class Series:
    """The jobs of one task in one queue."""

    __slots__ = ("completed", "last", "others", "queue", "ran", "task", "timed", "waited")

    def __init__(self, queue: str, task: str) -> None:
        self.queue = queue
        self.task = task
        self.completed = 0
        self.timed = 0
        """How many had completed when one was last timed."""
        self.others: defaultdict[str, int] = defaultdict(int)
        """Attempts with another outcome, jobs enqueued and deduplicated: by name."""
        self.ran = Histogram()
        self.waited = Histogram()
        self.last: bytes = b""
        """One of the jobs that completed last."""


class Meter:
    """Counts jobs by queue and task, and calls of the store by operation. Of very many pairs of queue and task, the
    first are counted apart and the rest together. Belongs to one thread; another may read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._series: dict[tuple[str, str], Series] = {}
        self._last = Series("", "")
        self._offset = 0.0
        """What turns an instant of ``perf_counter`` into one of the wall clock."""
        self._compared = -_LATELY
        self.skip = 0
        """How many jobs are still to be run without being timed."""
        self.calls: dict[str, Histogram] = {}
        """Calls of the store: how long they took, by operation."""
        self.claims = Histogram(SIZES)
        """Jobs that a claim brought."""
        self.upkeep = Upkeep()

    def completed(self, leased: Leased, began: float) -> None:
        """A job has completed that began at this instant of ``perf_counter``; 0: it was not timed. The usual end, so it
        is short."""
        series = self._last
        if leased.task != series.task or leased.queue != series.queue:
            series = self._last = self._find(leased.queue, leased.task)
        series.completed += 1
        if began:
            self._time(series, leased, began)

    def _time(self, series: Series, leased: Leased, began: float) -> None:
        """What was not timed since the last time counts like this one."""
        ended = perf_counter()
        if ended - self._compared > _LATELY:
            self._compare(ended)
        weight = series.completed - series.timed
        series.timed = series.completed
        series.last = leased.id
        seconds = ended - began
        series.ran.add(seconds, weight)
        series.waited.add(max(0.0, began + self._offset - leased.run_at * _MICRO), weight)
        self.skip = _SKIPPED if seconds < _QUICK else 0

    def ended(self, leased: Leased, outcome: str, began: float) -> None:
        """An attempt ended otherwise. ``began`` is 0 if it was not timed, or no handler was called."""
        series = self._find(leased.queue, leased.task)
        series.others[outcome] += 1
        if began:
            now = perf_counter()
            self._compare(now)
            series.ran.add(now - began)
            series.waited.add(max(0.0, began + self._offset - leased.run_at * _MICRO))

    def count(self, queue: str, task: str, what: str) -> None:
        """Something happened to a job of this queue and task."""
        self._find(queue, task).others[what] += 1

    def called(self, operation: str, seconds: float) -> None:
        """A call of the store took so long."""
        found = self.calls.get(operation)
        if found is None:
            found = self.calls[operation] = Histogram()
        found.add(seconds)

    def series(self) -> Iterator[Series]:
        """All there are. Callable from any thread."""
        yield from list(self._series.values())

    def _compare(self, now: float) -> None:
        self._compared = now
        self._offset = self._clock.now() * _MICRO - now

    def _find(self, queue: str, task: str) -> Series:
        found = self._series.get((queue, task))
        if found is None:
            if len(self._series) >= MOST:
                queue = task = OTHER
            found = self._series.setdefault((queue, task), Series(queue, task))
        return found
