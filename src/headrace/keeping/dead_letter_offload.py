"""Sections of jobs that died without a worker that could have sent them to the object store are sent there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from headrace.core.clock import Clock
from headrace.payloads.segments import in_parts
from headrace.payloads.stowage import Stowage
from headrace.seam.archive import ArchiveStore, Mark
from headrace.seam.documents import DocumentStore
from headrace.seam.protocol import Backend
from headrace.seam.records import Record
from headrace.seam.references import ReferenceStore, Swap
from headrace.types import SECTIONS, JobState

_DOCUMENT = "objects/dead letters"
_EXPIRED = "expired"
_PAGE = 200
_SECTIONS = frozenset(SECTIONS)


class _Marks(Struct):
    """How far the dead letters of each state were looked at, as a document."""

    states: dict[str, Mark] = {}


class _Page(NamedTuple):
    """Jobs that ended one after another, and that nothing can end between any more."""

    dead: list[tuple[Record, int]]
    """Those of them whose sections may have to leave, with their weights."""
    last: Mark | None
    """What comes after that is for the next page; None: there is nothing to look at yet."""


class DeadLetterOffload:
    """Looks at each job once that has failed, or that has expired: at poison pills, at what a store has set aside, at
    what was settled while the object store was away. Those that a worker settled have left already, which their weight
    shows.

    How far it has looked is kept in the store, so any number of processes may look. It moves on only after a page was
    dealt with: a page that is looked at twice costs an object that nobody refers to, and that goes with its hour. A
    job that runs again meanwhile has the same sections, wherever they lie.
    """

    def __init__(
        self,
        archive: ArchiveStore,
        documents: DocumentStore,
        references: ReferenceStore,
        backend: Backend,
        stowage: Stowage,
        clock: Clock,
    ) -> None:
        self._archive = archive
        self._documents = documents
        self._references = references
        self._backend = backend
        self._stowage = stowage
        self._clock = clock

    async def look(self) -> int:
        """Look at all that has died since the last time; how many sections left the store. Raises
        ``ObjectsUnavailable``, and then looks at the same jobs again the next time."""
        left = 0
        loop = asyncio.get_running_loop()
        for state in (JobState.FAILED, JobState.CANCELLED):
            began = loop.time()
            while (sent := await self._look(state)) is not None:
                left += sent
                await asyncio.sleep(loop.time() - began)
                began = loop.time()
        return left

    async def _look(self, state: JobState) -> int | None:
        """Deal with one page: how many sections left; None: there is none, or somebody else has dealt with it."""
        [known] = await self._documents.get([_DOCUMENT])
        marks = _Marks() if known is None else msgspec.json.decode(known.body, type=_Marks)
        page = await self._page(state, marks.states.get(state))
        if page.last is None:
            return None
        left = 0
        for part in in_parts(page.dead, lambda one: one[1]):
            left += await self._send([record for record, _ in part])
        marks.states[state] = page.last
        version = 0 if known is None else known.version
        return left if await self._documents.put(_DOCUMENT, msgspec.json.encode(marks), version) else None

    async def _page(self, state: JobState, after: Mark | None) -> _Page:
        page = await self._archive.ended(state, after, _PAGE, at=self._clock.stamp())
        ended = [
            (record, weight)
            for record, weight in zip(page.records, page.weights, strict=True)
            if (record.finished_at or 0) <= page.final
        ]
        dead = [(one, weight) for one, weight in ended if _is_dead(one) and self._stowage.may_leave(weight)]
        if ended:
            return _Page(dead, Mark(ended[-1][0].finished_at or 0, ended[-1][0].id))
        all_changed = page.last is not None and not page.records and page.last.ended_at <= page.final
        return _Page([], page.last if all_changed else None)

    async def _send(self, dead: Sequence[Record]) -> int:
        found = await self._backend.fetch([one.id for one in dead], _SECTIONS, self._clock.stamp())
        jobs = [one for one in found if one is not None]
        stowed = await self._stowage.stow_dead([one.cells for one in jobs])
        swaps = [
            Swap(one.id, {name: one.cells[name] for name in cells}, cells)
            for one, cells in zip(jobs, stowed, strict=True)
            if cells
        ]
        if not swaps:
            return 0
        done = await self._references.swap(swaps, self._clock.stamp())
        return sum(len(swap.cells) for swap, was in zip(swaps, done, strict=True) if was)


def _is_dead(record: Record) -> bool:
    return record.state is JobState.FAILED or record.reason == _EXPIRED
