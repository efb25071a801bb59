"""Ended jobs by their ends: a store lists the ends, and the records are fetched as any others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.seam.archive import WEIGHT, EndedPage, Mark, Removal
from headrace.seam.records import JobId, JobKey, Record, Stamp
from headrace.types import JobState

MARGIN = 60_000_000
"""Microseconds after which the end of a job is visible to everybody, or never will be: longer than a call may last."""


class End(NamedTuple):
    """The end of a job, and what the job weighs."""

    ended_at: int
    id: JobId
    size: int


class ListEnds(Protocol):
    """Lists ends of one state after a mark, oldest first; and the instant up to which no more can come."""

    async def __call__(self, state: JobState, after: Mark | None, limit: int, at: Stamp) -> tuple[list[End], int]: ...


class Fetch(Protocol):
    """``Backend.fetch``."""

    async def __call__(
        self, names: Sequence[JobId | JobKey], want: frozenset[str] = ..., at: Stamp = None
    ) -> list[Record | None]: ...


class Removals(Protocol):
    """Counts of what sweeps have removed; see ``ArchiveStore``."""

    async def after(self, hour: int) -> list[Removal]:
        """Those of the first hour after this one that has any, in order."""

    async def forget(self, most: int, limit: int) -> int:
        """Forget the oldest; how many."""


class Archive:
    """See :class:`headrace.seam.archive.ArchiveStore`."""

    def __init__(self, ends: ListEnds, fetch: Fetch, removals: Removals) -> None:
        self._ends = ends
        self._fetch = fetch
        self._removals = removals

    async def ended(
        self,
        state: JobState,
        after: Mark | None = None,
        limit: int = 100,
        want: frozenset[str] = frozenset(),
        max_bytes: int = WEIGHT,
        at: Stamp = None,
    ) -> EndedPage:
        listed, final = await self._ends(state, after, limit, at)
        ends = _cut(listed, max_bytes) if want else listed
        if not ends:
            return EndedPage([], [], None, final)
        found = await self._fetch([end.id for end in ends], want, at)
        both = [
            (record, end.size)
            for end, record in zip(ends, found, strict=True)
            if record is not None and record.state is state and record.finished_at in (end.ended_at, None)
        ]
        records, weights = [record for record, _ in both], [weight for _, weight in both]
        return EndedPage(records, weights, Mark(ends[-1].ended_at, ends[-1].id), final)

    async def removals(self, after: int = -1) -> list[Removal]:
        return await self._removals.after(after)

    async def forget_removals(self, most: int, limit: int = 1_000) -> int:
        return await self._removals.forget(most, limit)


def _cut(ends: list[End], max_bytes: int) -> list[End]:
    """The first of them, until they weigh enough."""
    weight = 0
    for number, end in enumerate(ends, start=1):
        weight += end.size
        if weight >= max_bytes:
            return ends[:number]
    return ends
