"""Queues in numbers, from both servers; no number costs more when there are more jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.backends.streams.truth import Truth
from headrace.backends.streams.windows import CLOSING, OPEN, Windows
from headrace.seam.records import Stamp
from headrace.seam.windows import WindowState

_MODES = {OPEN: "open", CLOSING: "closing"}


class WindowHealth:
    """See :class:`headrace.seam.windows.WindowStore`."""

    def __init__(self, truth: Truth, windows: Windows) -> None:
        self._truth = truth
        self._windows = windows

    async def look(
        self, queues: Sequence[str] | None = None, horizon: int = 60_000_000, at: Stamp = None
    ) -> list[WindowState]:
        """The windows of these queues, or of all, by name."""
        names = await self._windows.queues(at) if queues is None else sorted(queues)
        numbers = await asyncio.gather(*(self._windows.health(queue, at) for queue in names))
        delayed = await self._truth.delayed(names, horizon, self._truth.limits.count_cap, at)
        found = []
        for queue, n in zip(names, numbers, strict=True):
            mode = _MODES.get(n.mode, "closed")
            later, next_at, soon = delayed.get(queue, (0, None, 0))
            found.append(
                WindowState(queue, mode, n.waiting, n.pending, n.overdue, n.consumers, n.lag, later, next_at, soon)
            )
        return found
