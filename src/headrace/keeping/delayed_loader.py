"""Brings sections of delayed jobs from the object store back into the store, a little before the jobs are due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random

from headrace.core.clock import Clock
from headrace.errors import HeadraceError, ObjectsUnavailable, Unavailable
from headrace.keeping.share import ALL, Share
from headrace.payloads.reference import referred_size
from headrace.payloads.segments import in_parts
from headrace.payloads.stowage import Stowage
from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Record
from headrace.seam.references import ReferenceStore, Swap, is_reference
from headrace.types import SECTIONS, JobState

log = logging.getLogger("headrace")

_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_FULL = _HOUR
"""How long after it looked at all jobs of the day it does so again: those that were put off meanwhile have old ids."""
_PAGE = 200
_REMEMBERED = 1_000_000
"""Jobs that it waits for. Others are loaded by their workers."""
_LAST = b"\xff" * 16
_SECTIONS = frozenset(SECTIONS)


class DelayedLoader:
    """Loads ahead, so that a job that becomes due has its sections where it is claimed from.

    Jobs do not need it: a worker that claims one first loads its sections itself. So it may run as a process of its
    own, next to the object store, in any number or not at all. A section that is so large that it would leave again
    stays where it is. Whoever writes a cell meanwhile wins.
    """

    def __init__(
        self,
        backend: Backend,
        references: ReferenceStore,
        stowage: Stowage,
        clock: Clock,
        *,
        ahead: int,
        share: Share = ALL,
    ) -> None:
        self._backend = backend
        self._references = references
        self._stowage = stowage
        self._clock = clock
        self._ahead = ahead
        self._share = share
        self._coming: list[tuple[int, JobId]] = []
        """When jobs are due; a heap."""
        self._known: set[JobId] = set()
        self._upto: dict[int, tuple[int, JobId]] = {}
        """How far it has looked in each hour."""
        self._looked_at_all = -_FULL
        self.loaded = 0
        """Jobs, so far."""

    async def run(self, every: float, rng: Random) -> None:
        """Load until cancelled. What fails is tried again."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                log.warning("sections could not be loaded ahead; that is tried again: %s", error)
            await asyncio.sleep(every * (0.75 + rng.random() / 2))

    async def look(self) -> int:
        """One round; how many jobs were loaded."""
        now = self._clock.now()
        await self._find(now)
        before = self.loaded
        while due := self._take(now + self._ahead):
            try:
                await self._load(due)
            except BaseException:
                for at, job_id in due:
                    heappush(self._coming, (at, job_id))
                raise
            self._known.difference_update(job_id for _, job_id in due)
        return self.loaded - before

    def _take(self, until: int) -> list[tuple[int, JobId]]:
        """The jobs that are due until then, a bounded number."""
        due: list[tuple[int, JobId]] = []
        while self._coming and self._coming[0][0] <= until and len(due) < _PAGE:
            due.append(heappop(self._coming))
        return due

    async def _find(self, now: int) -> None:
        """Look for jobs whose objects are those of today. A job lies in the hour in which it is due, or in a later one
        of the same day. In each hour ids rise with time, so most of the new ones come last."""
        if now - self._looked_at_all >= _FULL:
            self._looked_at_all = now
            self._upto.clear()
            self._coming.clear()
            self._known.clear()
        for hour in range(now // _HOUR, 24 * ((now + self._ahead) // _DAY + 1)):
            await self._find_in(hour)

    async def _find_in(self, hour: int) -> None:
        after = self._upto.get(hour, (hour - 1, _LAST))
        while page := await self._references.find(hour + 1, after, _PAGE, self._clock.stamp()):
            self._upto[hour] = after = page[-1].hour, page[-1].id
            ids = [job.id for job in page if self._share.has(job.id) and job.id not in self._known]
            records = await self._backend.fetch(ids, frozenset(), self._clock.stamp())
            for record in records:
                if record is not None and record.state is JobState.AVAILABLE and len(self._coming) < _REMEMBERED:
                    heappush(self._coming, (record.run_at, record.id))
                    self._known.add(record.id)

    async def _load(self, due: Sequence[tuple[int, JobId]]) -> None:
        found = await self._backend.fetch([job_id for _, job_id in due], _SECTIONS, self._clock.stamp())
        waiting = [record for record in found if record is not None and record.state is JobState.AVAILABLE]
        for part in in_parts(waiting, lambda record: sum(map(referred_size, self._wanted(record).values()))):
            await self._load_part(part)

    def _wanted(self, record: Record) -> dict[str, bytes]:
        """The references of a job to sections that stay in the store when it is due."""
        return {
            name: cell
            for name, cell in record.cells.items()
            if is_reference(cell) and self._stowage.stays(name, referred_size(cell))
        }

    async def _load_part(self, records: Sequence[Record]) -> None:
        seen = [self._wanted(record) for record in records]
        swaps = []
        for record, was, cells in zip(records, seen, await self._stowage.load(seen), strict=True):
            here = {name: cell for name, cell in cells.items() if isinstance(cell, bytes)}
            wrong = [cell for cell in cells.values() if isinstance(cell, HeadraceError)]
            if away := next((error for error in wrong if isinstance(error, ObjectsUnavailable)), None):
                raise away
            if here:
                swaps.append(Swap(record.id, {name: was[name] for name in here}, here))
        self.loaded += sum(await self._references.swap(swaps, self._clock.stamp()))
