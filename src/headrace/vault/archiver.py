"""A duty of workers with a vault: ended jobs are written to it, page by page, before retention may remove them."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from msgspec.structs import replace

from headrace.core.alerts import Alert
from headrace.core.clock import Clock
from headrace.core.config import VaultSettings
from headrace.core.durations import micros
from headrace.core.events import Observers
from headrace.errors import ConfigError, ObjectsUnavailable, Unavailable
from headrace.keeping.archive_marks import ArchiveMarks, Progress
from headrace.keeping.bounds import ENDED
from headrace.payloads.codec import Unloaded
from headrace.payloads.objects import Objects
from headrace.payloads.stowage import Stowage
from headrace.seam.archive import ArchiveStore, EndedPage, Mark
from headrace.seam.protocol import Backend
from headrace.seam.records import Record
from headrace.types import SECTIONS, JobState
from headrace.vault.layout import hour_of, page_key
from headrace.vault.tables import encode, jobs_table

log = logging.getLogger("headrace")

_WANT = frozenset((*SECTIONS, "error", "result"))
_FAILURES = 3


class Archiver:
    """Reads ended jobs oldest first, from the mark of their state, and writes pages of them. Each page is of one hour.

    Before a page is written, its last job is noted in the store. So if this process dies, whoever goes on writes the
    same jobs under the same key, and a page that is there already is not written again. Then the mark moves behind it.
    Any number of workers may do this at once: of those that write a page, one moves the mark.
    """

    def __init__(
        self,
        backend: Backend,
        objects: Objects,
        clock: Clock,
        rng: Random,
        observers: Observers,
        settings: VaultSettings,
        *,
        stowage: Stowage | None = None,
    ) -> None:
        if backend.documents is None or backend.archive is None:
            raise ConfigError("vault.url: this store does not list what has ended; unset it")
        self._archive: ArchiveStore = backend.archive
        self._marks = ArchiveMarks(backend.documents, objects.location.where)
        self._objects = objects
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._every = micros(settings.every) / 1e6
        self._page = settings.page
        self._stowage = stowage
        self._failures = 0

    async def run(self) -> None:
        """Archive until cancelled. What fails is tried again; nothing goes meanwhile."""
        while True:
            await self.look()
            await asyncio.sleep(self._every * (0.75 + self._rng.random() / 2))

    async def look(self) -> int:
        """Archive what there is; how many jobs. Raises nothing."""
        try:
            archived = await self.archive()
        except Exception as error:
            self._failures += 1
            if not isinstance(error, Unavailable):
                log.exception("ended jobs could not be archived; that is tried again")
            if self._failures >= _FAILURES:
                sentence = f"{self._failures} tries to archive failed, and nothing that has ended is removed: {error}"
                self._observers.alert(Alert.ARCHIVE_FAILING, "", sentence, error=error, again_in=self._every)
            return 0
        self._failures = 0
        return archived

    async def archive(self) -> int:
        """Archive all that is final; how many jobs."""
        return sum([await self._archive_state(state) for state in ENDED])

    async def _archive_state(self, state: JobState) -> int:
        archived = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            count, more = await self._archive_page(state)
            archived += count
            if not more:
                return archived
            await asyncio.sleep(loop.time() - began)

    async def _archive_page(self, state: JobState) -> tuple[int, bool]:
        """Archive one page: how many jobs it has, and whether there may be more."""
        marks = await self._marks.read()
        progress = marks.of(state)
        records, done = await self._read(state, progress)
        if done.mark is None:
            return 0, False
        if progress.pending is None:
            noted = await self._marks.save(marks, state, replace(progress, pending=done.mark))
            if noted is None:
                return 0, True
            marks = noted
        if records:
            await self._objects.create(page_key(state.value, records[0], records[-1]), await self._encoded(records))
        await self._marks.save(marks, state, done)
        return len(records), True

    async def _read(self, state: JobState, progress: Progress) -> tuple[list[Record], Progress]:
        """The jobs of the next page, and how far all is archived with it. A page that somebody has begun has all jobs
        up to its end; a new one those of one hour that are final."""
        if (last := progress.pending) is not None:
            return await self._up_to(state, progress.mark, last), Progress(last, None, last.ended_at - 1)
        first = await self._archive.ended(state, progress.mark, 1, at=self._clock.stamp())
        if first.records and (first.records[0].finished_at or 0) > first.final:
            return [], Progress()  # a busy store has many jobs that are not final, and to read them would be in vain
        page = await self._archive.ended(state, progress.mark, self._page, _WANT, at=self._clock.stamp())
        final = [one for one in page.records if (one.finished_at or 0) <= page.final]
        chosen = [one for one in final if hour_of(one.finished_at or 0) == hour_of(final[0].finished_at or 0)]
        if chosen:
            mark = Mark(chosen[-1].finished_at or 0, chosen[-1].id)
            return chosen, Progress(mark, None, _through(page, len(chosen), mark, self._page))
        if page.last is not None and not page.records and page.last.ended_at <= page.final:
            return [], Progress(page.last, None, page.last.ended_at - 1)  # all have changed since they were listed
        return [], Progress()

    async def _up_to(self, state: JobState, after: Mark | None, last: Mark) -> list[Record]:
        found: list[Record] = []
        while True:
            page = await self._archive.ended(state, after, self._page, _WANT, at=self._clock.stamp())
            found += [one for one in page.records if Mark(one.finished_at or 0, one.id) <= last]
            if page.last is None or page.last >= last:
                return found
            after = page.last

    async def _encoded(self, records: list[Record]) -> bytes:
        """The page, with the cells that references lead to: the objects of those will be gone one day. Where one is
        gone already, the reference is kept: it fails whoever runs the job again."""
        if self._stowage is not None:
            records = await self._stowage.load_records(records)
            for record in records:
                for name, cell in record.cells.items():
                    if not isinstance(cell, Unloaded):
                        continue
                    if isinstance(cell.error, ObjectsUnavailable):
                        raise cell.error
                    log.error("job %s is archived without its %s: %s", record.id.hex(), name, cell.error)
        return await asyncio.to_thread(lambda: encode(jobs_table(records)))


def _through(page: EndedPage, chosen: int, mark: Mark, limit: int) -> int:
    """The instant up to which all is archived, if the first ``chosen`` jobs of the page are."""
    if chosen < len(page.records):
        return min((page.records[chosen].finished_at or 0) - 1, page.final)
    if page.last == mark and len(page.records) < limit:
        return mark.ended_at
    return mark.ended_at - 1
