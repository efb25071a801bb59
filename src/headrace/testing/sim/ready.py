"""The seeded scheduler: which of the ready callbacks runs next is drawn by lot."""

from __future__ import annotations

import asyncio
from bisect import insort
from operator import itemgetter
from random import Random
from typing import Any

from headrace.testing.sim.nodes import node_of

_place = itemgetter(0, 1)


class SimTask(asyncio.Task[Any]):
    """A task that knows how many tasks were made before it."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)


class Ready:
    """Stands in for the loop's queue of ready callbacks.

    Entries lie in an order that does not depend on the order in which different tasks became ready: cancelling the
    children of a task group walks a set, and a set's order differs from one process to the next. The lot is drawn
    over that order, so a seed gives the same run everywhere.
    """

    def __init__(self, rng: Random, nothing: asyncio.Handle) -> None:
        self._rng = rng
        self._nothing = nothing
        self._entries: list[tuple[int, int, asyncio.Handle]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, handle: asyncio.Handle) -> None:
        """A callback has become ready."""
        self._arrivals += 1
        owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
        number = owner.number if isinstance(owner, SimTask) else -1
        insort(self._entries, (number, self._arrivals, handle), key=_place)

    def popleft(self) -> asyncio.Handle:
        """The next to run. What belongs to a node that stands still is parked there, and nothing runs instead."""
        entries = self._entries
        handle = entries.pop(int(self._rng.random() * len(entries)))[2]
        node = node_of(handle._context)  # type: ignore[attr-defined]
        if node is not None and node.halted:
            node.parked.append(handle)
            return self._nothing
        return handle

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
