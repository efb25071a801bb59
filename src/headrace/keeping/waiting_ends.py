"""How long what has ended has been waiting: dead letters for somebody to look, the rest for the vault."""

from __future__ import annotations

from msgspec import Struct

from headrace.errors import ConfigError
from headrace.keeping.archive_marks import MARKS, read_marks
from headrace.keeping.bounds import ENDED
from headrace.seam.archive import ArchiveStore
from headrace.seam.protocol import Backend
from headrace.types import JobState


class WaitingEnds(Struct, frozen=True):
    """Ages in seconds."""

    dead_letter: float | None = None
    """Since the oldest dead letter died; None: there is none, or the store does not list what has ended."""
    vault: float | None = None
    """Since the oldest job ended that is not archived, 0 if all are; None: there is no vault."""


NOTHING = WaitingEnds()


async def look_at_ended(backend: Backend, now: int) -> WaitingEnds:
    """One read for dead letters, one for the vault, and three more if there is one. Whoever may not read what has ended
    learns nothing of it."""
    if (archive := backend.archive) is None:
        return NOTHING
    try:
        return await _look(backend, archive, now)
    except ConfigError:
        return NOTHING


async def _look(backend: Backend, archive: ArchiveStore, now: int) -> WaitingEnds:
    oldest = (await archive.ended(JobState.FAILED, limit=1)).records
    marks = None
    if backend.documents is not None:
        [document] = await backend.documents.get([MARKS])
        marks = read_marks(document)
    lag = None
    if marks is not None:
        waiting = [(await archive.ended(state, marks.of(state).mark, 1)).records for state in ENDED]
        lag = max(_age(records[0].finished_at, now) if records else 0.0 for records in waiting)
    return WaitingEnds(_age(oldest[0].finished_at, now) if oldest else None, lag)


def _age(at: int | None, now: int) -> float:
    return 0.0 if at is None else max(0.0, (now - at) / 1e6)
