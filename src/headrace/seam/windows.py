"""The window of a queue: the next of its jobs, on a server that gives them out for another one that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from headrace.seam.records import Stamp


class WindowState(Struct, frozen=True):
    """A window in numbers."""

    queue: str
    mode: str
    """``open``; ``closed``: the store behind it gives the jobs out itself; ``closing``: on the way there."""
    waiting: int = 0
    """Jobs in the window that were not given out yet, delayed ones included."""
    pending: int = 0
    """Jobs that were given out and are not settled."""
    overdue: int = 0
    """Of these, those whose lease has ended."""
    consumers: int = 0
    lag: int = 0
    """Jobs in line that no consumer has read."""
    delayed: int = 0
    """Jobs that are not due yet, wherever they wait. This and ``soon`` are counted up to ``Limits.count_cap``."""
    next_at: int | None = None
    """When the first delayed job is due."""
    soon: int = 0
    """Delayed jobs that are due within the horizon."""


class WindowStore(Protocol):
    """Capability: windows. The cost of a look depends on the number of queues, not of jobs."""

    async def look(
        self, queues: Sequence[str] | None = None, horizon: int = 60_000_000, at: Stamp = None
    ) -> list[WindowState]:
        """The windows of these queues, or of all that have one, by name."""
