"""How many ended jobs sweeps have removed, in memory."""

from __future__ import annotations

import threading
from heapq import nsmallest

from headrace.backends.memory.entry import Entry
from headrace.seam.archive import HOUR, Removal

Scope = tuple[int, str, str, str]
"""Hour, state, task, tenant."""


class MemoryRemovals:
    """See :class:`headrace.backends.archive.Removals`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Scope, tuple[int, int]] = {}

    def add(self, entry: Entry) -> None:
        """A job that a sweep removes now."""
        scope = (entry.finished_at or 0) // HOUR, entry.state.value, entry.task, entry.tenant
        with self._lock:
            jobs, size = self._counts.get(scope, (0, 0))
            self._counts[scope] = jobs + 1, size + entry.size

    async def after(self, hour: int) -> list[Removal]:
        with self._lock:
            first = min((scope[0] for scope in self._counts if scope[0] > hour), default=None)
            return sorted(Removal(*scope, *counts) for scope, counts in self._counts.items() if scope[0] == first)

    async def forget(self, most: int, limit: int) -> int:
        with self._lock:
            oldest = nsmallest(min(limit, max(0, len(self._counts) - most)), self._counts)
            for scope in oldest:
                del self._counts[scope]
        return len(oldest)
