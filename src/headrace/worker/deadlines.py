"""The timeouts of all running jobs, with one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count


class Deadlines:
    """Calls a function for each deadline that passes, unless it was dropped before. However many there are, the loop
    has one timer for them."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._live: set[int] = set()
        self._numbers = count()
        self._timer: asyncio.Handle | None = None
        self._when = 0.0
        """What the timer is set to. Its handle cannot say: uvloop's, for an instant that has passed, has no time."""

    def add(self, seconds: float, action: Callable[[], None]) -> int:
        """Call ``action`` in ``seconds``, unless the returned number is dropped before."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        number = next(self._numbers)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._live):
            self._heap = [item for item in self._heap if item[1] in self._live]
            heapify(self._heap)
        self._live.add(number)
        heappush(self._heap, (when, number, action))
        if self._timer is None or when < self._when:
            self._arm(loop)
        return number

    def drop(self, number: int) -> None:
        """That deadline no longer matters."""
        self._live.discard(number)

    def close(self) -> None:
        """Drop all."""
        self._heap.clear()
        self._live.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._heap:
            self._when = self._heap[0][0]
            self._timer = loop.call_at(self._when, self._fire)

    def _fire(self) -> None:
        loop = asyncio.get_running_loop()
        now = max(loop.time(), self._when)  # a loop may be early by the resolution of its clock
        self._timer = None
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._live):
            _, number, action = heappop(self._heap)
            if number in self._live:
                self._live.discard(number)
                action()
        self._arm(loop)
