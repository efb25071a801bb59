"""Queues in numbers, from both servers; no number costs more when there are more jobs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.streams.windows import Windows
from headrace.seam.records import Stamp
from headrace.seam.windows import WindowState

_MODES = {b"o": "open", b"c": "closing", b"x": "closed", b"": "closed"}


class WindowHealth:
    """See :class:`headrace.seam.windows.WindowStore`."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    async def look(
        self, queues: Sequence[str] | None = None, horizon: int = 60_000_000, at: Stamp = None
    ) -> list[WindowState]:
        """The windows of these queues, or of all, by name."""
        found = []
        for queue in await self._windows.queues(at) if queues is None else sorted(queues):
            mode, waiting, pending, overdue, consumers, lag, delayed, next_at, soon = await self._windows.health(
                queue, horizon, at
            )
            found.append(
                WindowState(
                    queue, _MODES[mode], waiting, pending, overdue, consumers, lag, delayed,
                    int(float(next_at)) if next_at else None, soon,
                )
            )  # fmt: skip
        return found
