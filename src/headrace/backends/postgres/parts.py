"""Parts on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.postgres.arrays import bigints, byteas, uuids
from headrace.backends.postgres.capability import Capability
from headrace.seam.parts import KEEP, KEPT, Part, inbox_of
from headrace.seam.records import JobId, Stamp


class PostgresParts(Capability):
    """See :class:`headrace.seam.parts.PartStore`."""

    async def send(self, batch: Sequence[Part], at: Stamp = None) -> None:
        ids, bodies = uuids([part.job for part in batch]), byteas([part.body for part in batch])
        epochs, numbers = bigints([part.epoch for part in batch]), bigints([part.number for part in batch])
        await self._call("send_parts", at, ids, epochs, numbers, bodies, KEEP, KEPT)
        self._send([(f"inbox:{inbox_of(job)}", job) for job in {part.job: None for part in batch}])

    async def read(self, job_id: JobId, after: tuple[int, int], limit: int = 100, at: Stamp = None) -> list[Part]:
        return [Part(job_id, *row) for row in await self._call("read_parts", uuids([job_id]), *after, limit)]
