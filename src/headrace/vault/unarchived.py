"""Ended jobs that are not archived yet, for those who ask for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from headrace.core.clock import Clock
from headrace.errors import InvalidJob
from headrace.keeping.archive_marks import ArchiveMarks, Marks
from headrace.keeping.bounds import ENDED
from headrace.seam.archive import HOUR, ArchiveStore, Mark
from headrace.seam.documents import DocumentStore
from headrace.types import JobState
from headrace.vault.layout import PageFile, hour_of
from headrace.vault.tables import arrow, jobs_table

if TYPE_CHECKING:
    import pyarrow as pa

_PAGE = 1_000
_MOST = 1_000_000
"""Jobs at most: they are held in memory."""
_FIRST, _LAST = bytes(16), b"\xff" * 16


class Unarchived(Struct, frozen=True):
    """Ended jobs after the marks, without their cells. A file that was written since may have some of them too."""

    marks: Marks
    table: pa.Table

    def may_have(self, file: PageFile) -> bool:
        """Whether a job of the file may be among these."""
        mark = self.marks.of(JobState(file.state)).mark
        return mark is None or file.last > f"{mark.ended_at:016x}{mark.id.hex()}~"


async def read_unarchived(
    documents: DocumentStore, archive: ArchiveStore, clock: Clock, vault: str, since: int | None, until: int | None
) -> Unarchived:
    """Those that ended in the hours from ``since`` to ``until``. Files are to be listed afterwards, so that what is
    archived meanwhile is in one of them."""
    marks = await ArchiveMarks(documents, vault).read()
    first = None if since is None else Mark(hour_of(since) * HOUR, _FIRST)
    last = None if until is None else Mark((hour_of(until) + 1) * HOUR - 1, _LAST)
    tables, count = [jobs_table([])], 0
    for state in ENDED:
        after = max((mark for mark in (marks.of(state).mark, first) if mark is not None), default=None)
        while True:
            page = await archive.ended(state, after, _PAGE, at=clock.stamp())
            found = [one for one in page.records if last is None or Mark(one.finished_at or 0, one.id) <= last]
            tables.append(jobs_table(found))
            count += len(found)
            if count > _MOST:
                raise InvalidJob(
                    f"query: expected at most {_MOST:,} jobs that are not archived yet, and there are more: ask for "
                    "fewer hours (since, until), or ask again when workers have archived them"
                )
            if page.last is None or (last is not None and page.last > last):
                break
            after = page.last
    return Unarchived(marks, arrow().concat_tables(tables))
