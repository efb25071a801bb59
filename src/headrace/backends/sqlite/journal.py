"""The journal in a SQLite file."""

from __future__ import annotations

from headrace.backends.sqlite.connection_thread import Capability
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam.journal import KEPT, JournalEntry
from headrace.seam.records import Stamp

_SQL = load("journal")
_ALL = 2**62


class SqliteJournal(Capability):
    """See :class:`headrace.seam.journal.Journal`."""

    async def write(self, text: bytes, at: Stamp = None) -> int:
        return await self._write(lambda tx, now: _write(tx, text, now), at)

    async def read(self, before: int | None = None, limit: int = 100) -> list[JournalEntry]:
        return await self._read(lambda session, _: _read(session, _ALL if before is None else before, limit), None)


def _write(tx: Transaction, text: bytes, now: int) -> int:
    [[number]] = tx.rows(_SQL["write"], (now, text))
    tx.rows(_SQL["trim"], (number - KEPT,))
    return int(number)


def _read(session: Session, before: int, limit: int) -> list[JournalEntry]:
    return [JournalEntry(*row) for row in session.rows(_SQL["read"], (before, limit))]
