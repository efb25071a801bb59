"""The ends of jobs in a SQLite file, oldest first."""

from __future__ import annotations

from headrace.backends.archive import MARGIN, End
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import CODES
from headrace.backends.sqlite.transaction import Session
from headrace.seam.archive import Mark
from headrace.types import JobState

_SQL = load("archive")
_FIRST = Mark(-1, b"")


def ends(session: Session, state: JobState, after: Mark | None, limit: int, now: int) -> tuple[list[End], int]:
    """See :class:`headrace.backends.archive.ListEnds`."""
    mark = after or _FIRST
    found = session.rows(_SQL["ends"], (CODES[state], mark.ended_at, mark.id, limit))
    return [End(*row) for row in found], now - MARGIN
