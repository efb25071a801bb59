"""The journal on PostgreSQL."""

from __future__ import annotations

from headrace.backends.postgres.ticks import Call
from headrace.seam.journal import KEPT, JournalEntry
from headrace.seam.records import Stamp


class PostgresJournal:
    """See :class:`headrace.seam.journal.Journal`."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def write(self, text: bytes, at: Stamp = None) -> int:
        [[number]] = await self._call("write_journal", at, text, KEPT)
        return int(number)

    async def read(self, before: int | None = None, limit: int = 100) -> list[JournalEntry]:
        return [JournalEntry(*row) for row in await self._call("read_journal", before, limit)]
