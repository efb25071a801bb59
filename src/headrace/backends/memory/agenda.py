"""Jobs, or tenants, in an order that changes."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Name = TypeVar("Name", str, bytes)
Position = TypeVar("Position", int, tuple[int, int])
"""Often an instant."""


class Agenda(Generic[Name, Position]):
    """Names in the order of (position, name), each at one position.

    A name that is dropped or put elsewhere leaves a stale item in the heap. When more than half of the items are
    stale, the heap is rebuilt. That takes about as many steps as there were calls since the last time, so on average
    each call pays for one.
    """

    __slots__ = ("_heap", "positions")

    def __init__(self) -> None:
        self.positions: dict[Name, Position] = {}
        """The position of each name; to be read, not written."""
        self._heap: list[tuple[Position, Name]] = []

    def put(self, name: Name, position: Position) -> None:
        """Enter a name, or put it at another position."""
        before = self.positions.get(name)
        if before != position:
            self.positions[name] = position
            heappush(self._heap, (position, name))
            if before is not None:
                self._tidy()

    def drop(self, name: Name) -> None:
        """Take a name out, if it is here."""
        if self.positions.pop(name, None) is not None:
            self._tidy()

    def first(self) -> Position | None:
        """The first position."""
        while self._heap:
            position, name = self._heap[0]
            if self.positions.get(name) == position:
                return position
            heappop(self._heap)
        return None

    def head(self) -> tuple[Position, Name] | None:
        """The first position and its name."""
        return None if self.first() is None else self._heap[0]

    def pop(self) -> Name | None:
        """Remove and return the first name."""
        heap, positions = self._heap, self.positions
        while heap:
            position, name = heappop(heap)
            if positions.get(name) == position:
                del positions[name]
                if len(heap) > 2 * len(positions):
                    self._tidy()
                return name
        return None

    def take(self, now: Position) -> Iterator[Name]:
        """The names whose position has come, in order; each is removed when it is returned."""
        while (first := self.first()) is not None and first <= now:
            _, name = heappop(self._heap)
            self.drop(name)
            yield name

    def peek(self, now: Position, limit: int) -> list[Name]:
        """The first names whose position has come, which stay."""
        found: dict[Name, Position] = {}
        while len(found) < limit and (position := self.first()) is not None and position <= now:
            _, name = heappop(self._heap)
            found[name] = position
        for name, position in found.items():
            heappush(self._heap, (position, name))
        return list(found)

    def count_after(self, now: Position) -> int:
        """How many positions are still to come."""
        if (first := self.first()) is None or first > now:
            return len(self.positions)
        return sum(position > now for position in self.positions.values())

    def first_after(self, now: Position) -> Position | None:
        """The first position that is still to come."""
        if (first := self.first()) is None or first > now:
            return first
        return min((position for position in self.positions.values() if position > now), default=None)

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self.positions):
            self._heap = [(position, name) for name, position in self.positions.items()]
            heapify(self._heap)
