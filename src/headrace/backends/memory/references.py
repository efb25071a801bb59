"""Jobs by the objects that they refer to, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from headrace.backends.memory.capability import Capability
from headrace.seam.records import JobId, Stamp
from headrace.seam.references import RESULT, Referrer, Swap, is_reference, oldest_hour


class MemoryReferences(Capability):
    """The operations of a :class:`~headrace.seam.references.ReferenceStore`."""

    async def find(
        self, before: int, after: tuple[int, JobId] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Referrer]:
        with self._store.lock:
            hours = ((oldest_hour(entry.cells), entry) for entry in self._store.jobs.values())
            hits = (
                Referrer(entry.id, hour, {name: cell for name, cell in entry.cells.items() if is_reference(cell)})
                for hour, entry in hours
                if hour is not None and hour < before and (after is None or (hour, entry.id) > after)
            )
            return nsmallest(limit, hits, key=lambda one: (one.hour, one.id))

    async def swap(self, batch: Sequence[Swap], at: Stamp = None) -> list[bool]:
        with self._store.lock:
            return [self._swap(one) for one in batch]

    def _swap(self, swap: Swap) -> bool:
        entry = self._store.jobs.get(swap.id)
        if entry is None:
            return False
        there = entry.cells if entry.result is None else entry.cells | {RESULT: entry.result}
        if not swap.seen.items() <= there.items():
            return False
        cells = dict(swap.cells)
        entry.result = cells.pop(RESULT, entry.result)
        entry.cells |= cells
        return True
