"""The jobs of one tenant, in the order in which a claim takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import BEYOND, Transaction
from headrace.backends.turns import Turns
from headrace.seam.policy import FOREVER

_SQL = load("turn")

_LONG_AGO = -(2**62)
_AT_ONCE = 100
_LEVELS = 1_000
"""With ageing, a claim looks at most at this many priorities of a lane; more are left to later claims."""


class Lane(NamedTuple):
    """One tenant and task."""

    number: int
    task: str
    next_due: int | None
    """When the first delayed job is due."""


First = tuple[list[Any], int]
"""Jobs at the head of a lane, and how many were asked for."""


class Run:
    """Due jobs that follow each other in one priority of a lane. The caller says how many it has drawn."""

    __slots__ = ("_stream", "lane", "leads", "rows")

    def __init__(self, stream: _Stream, rows: list[Any]) -> None:
        self._stream = stream
        self.lane = stream.lane
        self.leads = stream.untouched
        """Whether nothing of that priority lies before them."""
        self.rows = rows

    def close(self, drawn: int) -> None:
        """That many of them were drawn."""
        self._stream.skip(drawn)


class TenantJobs:
    """The due jobs of all lanes of a tenant, merged. With ageing, each priority of a lane is a stream of its own.

    Where there is only one lane, its first jobs may have been read before.
    """

    _cut: tuple[int, ...] = ()
    """Lanes with more priorities than are looked at."""

    def __init__(
        self, tx: Transaction, lanes: Sequence[Lane], ageing: int | None, now: int, first: First | None = None
    ) -> None:
        self._ageing = ageing
        self._lanes = lanes
        self._now = now
        self._heap: list[tuple[tuple[Any, ...], int]] = []
        """Of several streams, the order of the next job of each, or what comes before it."""
        if ageing is None:
            self._streams = [_Stream(tx, lane, now) for lane in lanes]
            if first is not None:
                self._streams[0].take_in(*first)
            elif len(lanes) > 1:
                self._heap = [((), number) for number in range(len(lanes))]
        else:
            self._streams = []
            for lane in lanes:
                self._add_levels(tx, lane, ageing)
            heapify(self._heap)

    def _add_levels(self, tx: Transaction, lane: Lane, ageing: int) -> None:
        levels = tx.rows(_SQL["levels"], (lane.number, _LEVELS))
        if len(levels) == _LEVELS:
            self._cut = (*self._cut, lane.number)
        for priority, run_at in levels:
            self._heap.append(((run_at + priority * ageing,), len(self._streams)))
            self._streams.append(_Stream(tx, lane, self._now, priority))

    def draw(self, turns: Turns, wanted: int) -> Run | None:
        """The first due jobs of tasks that may run: at most as many as are wanted, and as the rate of the task
        allows."""
        if len(self._streams) == 1:
            [only] = self._streams
            if only.lane.task in turns.closed or only.head(wanted) is None:
                return None
            return Run(only, only.run(turns.task_room(only.lane.task, wanted, self._now)))
        while self._heap:
            expected, number = self._heap[0]
            stream = self._streams[number]
            if stream.lane.task in turns.closed or (row := stream.head(wanted)) is None:
                heappop(self._heap)
            elif (order := self._order(row)) == expected:
                return Run(stream, stream.run(1))
            else:
                heapreplace(self._heap, (order, number))
        return None

    def _order(self, row: Any) -> tuple[Any, ...]:
        if self._ageing is None:
            return row[0], row[1], row[2]
        return row[1] + row[0] * self._ageing, row[2]

    def wakes_at(self, closed: Mapping[str, int]) -> int:
        """When the first job that is left may start, once all that may start now have been drawn."""
        instants = [stream.wakes_at(closed) for stream in self._streams]
        instants += [max(lane.next_due, closed.get(lane.task, 0)) for lane in self._lanes if lane.next_due is not None]
        if self._cut:
            instants += [max(self._now, closed.get(lane.task, 0)) for lane in self._lanes if lane.number in self._cut]
        return min(instants, default=FOREVER)

    def emptied(self) -> set[int]:
        """The lanes of which nothing is left, except jobs that were passed over."""
        empty = {stream.lane.number for stream in self._streams if stream.empty}
        if empty and len(self._streams) > 1:
            empty.difference_update([stream.lane.number for stream in self._streams if not stream.empty], self._cut)
        return empty


def first_of(tx: Transaction, lanes: Iterable[int], number: int) -> dict[int, list[Any]]:
    """The first jobs of lanes, this many of each."""
    found: dict[int, list[Any]] = {lane: [] for lane in lanes}
    rows: list[Any] = tx.executemany(_SQL["lane_head"], [(lane, number) for lane in found]).fetchall()
    for row in rows:
        found[row[-1]].append(row)
    return found


class _Stream:
    """The due jobs of a lane, or of one priority of it, in their order, read a few at a time."""

    __slots__ = ("_after", "_done", "_level", "_next", "_next_due", "_now", "_rows", "_tx", "lane", "untouched")

    def __init__(self, tx: Transaction, lane: Lane, now: int, level: int | None = None) -> None:
        self.lane = lane
        self._tx = tx
        self._now = now
        self._level = level
        self._after: tuple[int, int, bytes] | None = None if level is None else (level, _LONG_AGO, b"")
        self._rows: list[Any] = []
        self._next = 0
        self._done = False
        self._next_due = FOREVER if lane.next_due is None else lane.next_due
        """When the first of those that are not due yet will be."""
        self.untouched = True
        """Whether nothing has been drawn or passed by."""

    @property
    def unread(self) -> bool:
        """Whether it is a priority, which has jobs, of which none was read."""
        return self._level is not None and self.untouched and not self._rows

    def head(self, wanted: int) -> Any:
        """The first due job that has not been drawn, or None."""
        while True:
            while self._next < len(self._rows):
                row = self._rows[self._next]
                if row[1] <= self._now:
                    return row
                self._pass_by(row[0], row[1])
            if self._done:
                return None
            self._read(min(wanted, _AT_ONCE) + 1)  # one more shows whether the lane is empty then

    def _read(self, number: int) -> None:
        if self._after is None:
            rows = self._tx.rows(_SQL["lane_head"], (self.lane.number, number))
        else:
            sql = _SQL["lane_after" if self._level is None else "lane_level"]
            rows = self._tx.rows(sql, (self.lane.number, *self._after, number))
        self.take_in(rows, number)

    def take_in(self, rows: list[Any], number: int) -> None:
        """These come next, when this many were asked for."""
        self._rows = rows
        self._next = 0
        self._done = len(rows) < number
        if rows:
            self._after = rows[-1][:3]

    def _pass_by(self, priority: int, run_at: int) -> None:
        """Nothing more of this priority is due."""
        self._next_due = min(self._next_due, run_at)
        self.untouched = False
        while self._next < len(self._rows) and self._rows[self._next][0] == priority:
            self._next += 1
        if self._next == len(self._rows):
            self._after = (priority, FOREVER, BEYOND)
            self._done = self._done or self._level is not None

    def run(self, wanted: int) -> list[Any]:
        """Due jobs from the first on, of one priority, of those that were read."""
        rows = self._rows[self._next : self._next + wanted]
        if rows[-1][0] == rows[0][0] and rows[-1][1] <= self._now:
            return rows
        return [row for row in rows if row[0] == rows[0][0] and row[1] <= self._now]

    def skip(self, number: int) -> None:
        """That many of them were drawn."""
        self._next += number
        self.untouched = False

    def wakes_at(self, closed: Mapping[str, int]) -> int:
        until = closed.get(self.lane.task, 0)
        first = self._next_due if not until or not (self.unread or self.head(1)) else self._now
        return FOREVER if first == FOREVER else max(first, until)

    @property
    def empty(self) -> bool:
        """Whether all that was in it has been drawn, as far as that is known."""
        return self._done and self._next == len(self._rows) and self._next_due == FOREVER
