"""The ends of jobs in a SQLite file, oldest first."""

from __future__ import annotations

from headrace.backends.archive import MARGIN, End
from headrace.backends.sqlite.connection_thread import Read
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import CODES
from headrace.backends.sqlite.transaction import Session
from headrace.seam.archive import Mark
from headrace.seam.records import Stamp
from headrace.types import JobState

_SQL = load("archive")
_FIRST = Mark(-1, b"")


class SqliteEnds:
    """See :class:`headrace.backends.archive.ListEnds`."""

    def __init__(self, read: Read) -> None:
        self._read = read

    async def __call__(self, state: JobState, after: Mark | None, limit: int, at: Stamp) -> tuple[list[End], int]:
        def work(session: Session, now: int) -> tuple[list[End], int]:
            mark = after or _FIRST
            found = session.rows(_SQL["ends"], (CODES[state], mark.ended_at, mark.id, limit))
            return [End(*row) for row in found], now - MARGIN

        return await self._read(work, at)
