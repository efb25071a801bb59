"""Aged: jobs that have been kept for as long as their rule says, read in the order of their ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from headrace.keeping.bounds import Bounds
from headrace.seam.archive import ArchiveStore, EndedPage, Mark
from headrace.seam.records import JobId, Record, Stamp

PAGE = 1_000
_GLANCE = 32
"""The first page is small: mostly nothing is old enough, and that shows at once."""


async def pages_until(
    archive: ArchiveStore, bounds: Bounds, until: int, after: Mark | None, at: Stamp
) -> AsyncIterator[EndedPage]:
    """Pages of ended jobs, until all that ended at an instant or before it were read."""
    size = _GLANCE
    while (page := await archive.ended(bounds.state, after, size, at=at)).last is not None:
        yield page
        if page.last.ended_at > until:
            return
        after, size = page.last, PAGE


def past(bounds: Bounds, page: EndedPage, now: int, latest: int) -> list[Record]:
    """The jobs of a page that have been kept for as long as their rules say, and that nothing else keeps."""
    return [
        record
        for record in page.records
        if (age := bounds.age_of(record)) is not None
        and not record.held
        and (record.finished_at or 0) <= min(now - age, latest)
    ]


async def count_past(archive: ArchiveStore, bounds: Bounds, now: int, latest: int, most: int, at: Stamp) -> int:
    """How many jobs are too old; it counts no further than one page beyond ``most``."""
    found = 0
    async for page in pages_until(archive, bounds, min(now - bounds.ages[0], latest), None, at):
        found += len(past(bounds, page, now, latest))
        if found > most:
            break
    return found


class Tally:
    """What a run would delete of one state, counted page by page."""

    def __init__(self, bounds: Bounds, now: int, latest: int) -> None:
        self._bounds = bounds
        self._now = now
        self._latest = latest
        self.past: set[JobId] = set()
        self.deleted = 0
        self.bytes = 0
        self._more, self._heavier = 0, 0

    def add_past(self, page: EndedPage) -> None:
        """Count what is too old."""
        gone = {record.id for record in past(self._bounds, page, self._now, self._latest)}
        self.past |= gone
        self.count(weight for record, weight in zip(page.records, page.weights, strict=True) if record.id in gone)

    def over(self, count: int, size: int) -> tuple[int, int]:
        """By how many jobs and bytes the others exceed their bounds, if there are this many in all."""
        most, largest = self._bounds.count, self._bounds.bytes
        excess = 0 if most is None else count - self.deleted - most
        return excess, 0 if largest is None else size - self.bytes - largest

    def add_oldest(self, page: EndedPage, excess: int, over: int) -> bool:
        """Count the oldest of the others, until the excess is gone; whether it is not."""
        for record, weight in zip(page.records, page.weights, strict=True):
            if (self._more >= excess and self._heavier >= over) or (record.finished_at or 0) > self._latest:
                return False
            if record.id not in self.past:
                self._more, self._heavier = self._more + 1, self._heavier + weight
                self.count((weight,))
        return True

    def count(self, weights: Iterable[int]) -> None:
        """Count what weighs so much."""
        for weight in weights:
            self.deleted, self.bytes = self.deleted + 1, self.bytes + weight
