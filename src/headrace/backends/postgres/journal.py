"""The journal on PostgreSQL."""

from __future__ import annotations

from headrace.backends.postgres.capability import Capability
from headrace.seam.journal import KEPT, JournalEntry
from headrace.seam.records import Stamp


class PostgresJournal(Capability):
    """See :class:`headrace.seam.journal.Journal`."""

    async def write(self, text: bytes, at: Stamp = None) -> int:
        [[number]] = await self._call("write_journal", at, text, KEPT)
        return int(number)

    async def read(self, before: int | None = None, limit: int = 100) -> list[JournalEntry]:
        return [JournalEntry(*row) for row in await self._call("read_journal", before, limit)]
