"""The jobs of one tenant, in the order in which a claim takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Transaction
from headrace.seam.policy import FOREVER, Policy

_SQL = load("turn")

_LONG_AGO = -(2**62)
_BEYOND = b"\xff" * 17
"""Sorts after every id."""
_AT_ONCE = 100


class Lane(NamedTuple):
    """One tenant and task."""

    number: int
    task: str
    later: int | None
    """When the first of those that are not due is due."""


First = tuple[list[Any], int]
"""Jobs at the head of a lane, and how many were asked for."""


class Run:
    """Due jobs that follow each other in one priority of a lane. Whoever looks at them says how many he has drawn."""

    __slots__ = ("_stream", "lane", "leads", "rows")

    def __init__(self, stream: _Stream, rows: list[Any]) -> None:
        self._stream = stream
        self.lane = stream.lane
        self.leads = stream.untouched
        """Whether nothing of that priority lies before them."""
        self.rows = rows

    def close(self, drawn: int) -> None:
        """So many of them are out of the line."""
        self._stream.skip(drawn)


class Line:
    """The due jobs of all lanes of a tenant, merged. With ageing, each priority of a lane is a stream of its own.

    Where there is but one lane, its first jobs may have been read before.
    """

    def __init__(
        self, tx: Transaction, lanes: Sequence[Lane], policy: Policy, now: int, first: First | None = None
    ) -> None:
        self._step = policy.ageing
        self._lanes = lanes
        if self._step is None:
            self._streams = [_Stream(tx, lane, now) for lane in lanes]
            if first is not None:
                self._streams[0].take_in(*first)
        else:
            self._streams = [_Stream(tx, lane, now, level) for lane in lanes for level in _levels(tx, lane.number)]

    def draw(self, closed: Mapping[str, int], room: Callable[[str, int], int], wanted: int) -> Run | None:
        """The first due jobs, but for tasks that are closed; at most so many, and what there is room for of a task."""
        if len(self._streams) == 1:
            [only] = self._streams
            if only.lane.task in closed or only.head(wanted) is None:
                return None
            return Run(only, only.run(room(only.lane.task, wanted)))
        first = min(self._open(closed, wanted), default=None)
        return None if first is None else Run(first[1], first[1].run(1))

    def _open(self, closed: Mapping[str, int], wanted: int) -> Iterator[tuple[tuple[Any, ...], _Stream]]:
        for stream in self._streams:
            if stream.lane.task not in closed and (row := stream.head(wanted)) is not None:
                yield self._order(row), stream

    def _order(self, row: Any) -> tuple[Any, ...]:
        if self._step is None:
            return row[0], row[1], row[2]
        return row[1] + row[0] * self._step, row[2]

    def wakes_at(self, closed: Mapping[str, int]) -> int:
        """When the first job that is left may be started, when all that may be now have been drawn."""
        instants = [stream.wakes_at(closed) for stream in self._streams]
        instants += [max(lane.later, closed.get(lane.task, 0)) for lane in self._lanes if lane.later is not None]
        return min(instants, default=FOREVER)

    def emptied(self) -> set[int]:
        """The lanes of which nothing is left, but for jobs that were passed over."""
        empty = {stream.lane.number for stream in self._streams if stream.empty}
        if empty and len(self._streams) > 1:
            empty.difference_update([stream.lane.number for stream in self._streams if not stream.empty])
        return empty


def first_of(tx: Transaction, lanes: Iterable[int], number: int) -> dict[int, list[Any]]:
    """The first jobs of lanes, so many of each."""
    found: dict[int, list[Any]] = {lane: [] for lane in lanes}
    rows: list[Any] = tx.executemany(_SQL["line_head"], [(lane, number) for lane in found]).fetchall()
    for row in rows:
        found[row[-1]].append(row)
    return found


def _levels(tx: Transaction, lane: int) -> list[int]:
    return [priority for [priority] in tx.rows(_SQL["levels"], (lane,))]


class _Stream:
    """The due jobs of a lane, or of one priority of it, in their order, read a few at a time."""

    __slots__ = ("_after", "_done", "_later", "_level", "_next", "_now", "_rows", "_tx", "lane", "untouched")

    def __init__(self, tx: Transaction, lane: Lane, now: int, level: int | None = None) -> None:
        self.lane = lane
        self._tx = tx
        self._now = now
        self._level = level
        self._after: tuple[int, int, bytes] | None = None if level is None else (level, _LONG_AGO, b"")
        self._rows: list[Any] = []
        self._next = 0
        self._done = False
        self._later = FOREVER if lane.later is None else lane.later
        """When the first of those that are not due yet will be."""
        self.untouched = True
        """Whether nothing has been drawn or passed by."""

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
            self._read(min(wanted, _AT_ONCE) + 1)  # one more tells whether the lane is empty then

    def _read(self, number: int) -> None:
        if self._after is None:
            rows = self._tx.rows(_SQL["line_head"], (self.lane.number, number))
        else:
            sql = _SQL["line" if self._level is None else "line_of_level"]
            rows = self._tx.rows(sql, (self.lane.number, *self._after, number))
        self.take_in(rows, number)

    def take_in(self, rows: list[Any], number: int) -> None:
        """These come next, when so many were asked for."""
        self._rows = rows
        self._next = 0
        self._done = len(rows) < number
        if rows:
            self._after = rows[-1][:3]

    def _pass_by(self, priority: int, run_at: int) -> None:
        """Nothing more of this priority is due."""
        self._later = min(self._later, run_at)
        self.untouched = False
        while self._next < len(self._rows) and self._rows[self._next][0] == priority:
            self._next += 1
        if self._next == len(self._rows):
            self._after = (priority, FOREVER, _BEYOND)
            self._done = self._done or self._level is not None

    def run(self, wanted: int) -> list[Any]:
        """Due jobs from the first on, of one priority, of those that were read."""
        rows = self._rows[self._next : self._next + wanted]
        if rows[-1][0] == rows[0][0] and rows[-1][1] <= self._now:
            return rows
        return [row for row in rows if row[0] == rows[0][0] and row[1] <= self._now]

    def skip(self, number: int) -> None:
        """So many of them have been drawn."""
        self._next += number
        self.untouched = False

    def wakes_at(self, closed: Mapping[str, int]) -> int:
        until = closed.get(self.lane.task, 0)
        first = self._later if not until or self.head(1) is None else self._now
        return FOREVER if first == FOREVER else max(first, until)

    @property
    def empty(self) -> bool:
        """Whether all that was in it has been drawn, as far as that is known."""
        return self._done and self._next == len(self._rows) and self._later == FOREVER
