"""Parts in memory."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.memory.capability import Capability
from headrace.seam.parts import KEEP, KEPT, Part, inbox_of
from headrace.seam.records import JobId, Stamp


class MemoryParts(Capability):
    """See :class:`headrace.seam.parts.PartStore`."""

    async def send(self, batch: Sequence[Part], at: Stamp = None) -> None:
        with self._store.lock:
            now, kept = self._begin(at), self._store.parts
            for part in batch:
                _, parts = kept.pop(part.job, (0, []))
                if not parts or (parts[-1].epoch, parts[-1].number) < (part.epoch, part.number):
                    parts = [*(one for one in parts if one.epoch == part.epoch), part][-KEPT:]
                kept[part.job] = now + KEEP, parts
                self._store.publish(f"inbox:{inbox_of(part.job)}", part.job)
            while (first := next(iter(kept), None)) is not None and kept[first][0] <= now:
                del kept[first]

    async def read(self, job_id: JobId, after: tuple[int, int], limit: int = 100, at: Stamp = None) -> list[Part]:
        with self._store.lock:
            _, parts = self._store.parts.get(job_id, (0, []))
            return [part for part in parts if (part.epoch, part.number) > after][:limit]
