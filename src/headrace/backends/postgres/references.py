"""Jobs by the objects that they refer to, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from headrace.backends.postgres.capability import Capability
from headrace.backends.postgres.composites import rows_of
from headrace.seam.records import JobId, Stamp
from headrace.seam.references import Referrer, Swap
from headrace.types import SECTIONS

_FIRST = -1, bytes(16)


class PostgresReferences(Capability):
    """See :class:`headrace.seam.references.ReferenceStore`."""

    async def find(
        self, before: int, after: tuple[int, JobId] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Referrer]:
        hour, job_id = after or _FIRST
        found = await self._call("referring", before, hour, UUID(bytes=job_id), limit)
        return [
            Referrer(job_id, hour, {name: cell for name, cell in zip(SECTIONS, cells, strict=True) if cell is not None})
            for job_id, hour, *cells in found
        ]

    async def swap(self, batch: Sequence[Swap], at: Stamp = None) -> list[bool]:
        if not batch:
            return []
        return [done for [done] in await self._call("swap_cells", rows_of("swap_row", batch))]
