"""What several stores can do together, beside the ten operations, rules and schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from heapq import nsmallest

from headrace.errors import Unavailable
from headrace.routing.transit import in_transit
from headrace.routing.view import Look, View, each, those_there
from headrace.seam.archive import WEIGHT, ArchiveStore, EndedPage, Mark, Removal, first_hour
from headrace.seam.documents import Document, DocumentStore
from headrace.seam.journal import Journal, JournalEntry
from headrace.seam.parts import Part, PartStore
from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Record, Stamp
from headrace.seam.references import ReferenceStore, Referrer, Swap
from headrace.types import JobState

StillHome = Callable[[Backend], Awaitable[bool]]
"""Whether a store is still home, now that something was written there."""


async def _settled(view: View) -> View:
    """Jobs in parcels are in no store; who must see all of them comes again later."""
    if await in_transit(view):
        raise Unavailable("jobs are on their way from one store to another just now; this goes on by itself")
    return view


class RoutedDocuments:
    """Documents lie in the store that is home. What was written there while another store became home is written
    again: it may have come too late to be taken along."""

    def __init__(self, look: Look, still_home: StillHome) -> None:
        self._look = look
        self._still_home = still_home

    async def _documents(self) -> DocumentStore:
        documents = (await self._look()).home.documents
        assert documents is not None
        return documents

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        return await (await self._documents()).get(names)

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        home = (await self._look()).home
        assert home.documents is not None
        return await home.documents.put(name, body, version) and await self._still_home(home)

    async def find(self, prefix: str, after: str = "", limit: int = 100) -> list[Document]:
        return await (await self._documents()).find(prefix, after, limit)


class RoutedJournal:
    """The journal lies in the store that is home too. An entry that was written while another store became home may be
    there twice afterwards."""

    def __init__(self, look: Look, still_home: StillHome) -> None:
        self._look = look
        self._still_home = still_home

    async def write(self, text: bytes, at: Stamp = None) -> int:
        while True:
            home = (await self._look()).home
            number = await _journal(home).write(text, at)
            if await self._still_home(home):
                return number

    async def read(self, before: int | None = None, limit: int = 100) -> list[JournalEntry]:
        return await _journal((await self._look()).home).read(before, limit)


class RoutedParts:
    """Parts are sent to the store that is home, and read from all: the home may have changed since."""

    def __init__(self, look: Look) -> None:
        self._look = look

    async def send(self, batch: Sequence[Part], at: Stamp = None) -> None:
        await _parts((await self._look()).home).send(batch, at)

    async def read(self, job_id: JobId, after: tuple[int, int], limit: int = 100, at: Stamp = None) -> list[Part]:
        found, _ = await those_there(await self._look(), lambda store: _parts(store).read(job_id, after, limit, at))
        return nsmallest(limit, (one for some in found for one in some), key=lambda one: (one.epoch, one.number))


class RoutedReferences:
    """References of the jobs of all stores."""

    def __init__(self, look: Look) -> None:
        self._look = look

    async def find(
        self, before: int, after: tuple[int, JobId] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Referrer]:
        view = await _settled(await self._look())
        found = await each(view, lambda store: _references(store).find(before, after, limit, at))
        return nsmallest(limit, (one for some in found for one in some), key=lambda one: (one.hour, one.id))

    async def swap(self, batch: Sequence[Swap], at: Stamp = None) -> list[bool]:
        if not batch:
            return []
        done = await each(await self._look(), lambda store: _references(store).swap(batch, at))
        return [any(answers) for answers in zip(*done, strict=True)]


class RoutedArchive:
    """Ended jobs of all stores, in the order of their ends."""

    def __init__(self, look: Look) -> None:
        self._look = look

    async def ended(
        self,
        state: JobState,
        after: Mark | None = None,
        limit: int = 100,
        want: frozenset[str] = frozenset(),
        max_bytes: int = WEIGHT,
        at: Stamp = None,
    ) -> EndedPage:
        view = await _settled(await self._look())
        pages = await each(view, lambda store: _ended(store, state, after, limit, want, max_bytes, at))
        found: dict[JobId, tuple[Record, int]] = {}
        for page in pages:
            found |= {one.id: (one, weight) for one, weight in zip(page.records, page.weights, strict=True)}
        upto = min((page.last for page in pages if page.last is not None and len(page.records) >= limit), default=None)
        ends = sorted(found.values(), key=lambda one: _mark(one[0]))
        ends = [one for one in ends if upto is None or _mark(one[0]) <= upto][:limit]
        marks = [page.last for page in pages if page.last is not None]
        last = None if not marks else _mark(ends[-1][0]) if ends else min(marks)
        return EndedPage([one for one, _ in ends], [weight for _, weight in ends], last, min(p.final for p in pages))

    async def removals(self, after: int = -1) -> list[Removal]:
        return first_hour(await each(await self._look(), lambda store: _archive(store).removals(after)))

    async def forget_removals(self, most: int, limit: int = 1_000) -> int:
        """Each store may keep as many."""
        view = await self._look()
        return sum(await each(view, lambda store: _archive(store).forget_removals(most, limit)))


def _journal(store: Backend) -> Journal:
    assert store.journal is not None
    return store.journal


def _parts(store: Backend) -> PartStore:
    assert store.parts is not None
    return store.parts


def _references(store: Backend) -> ReferenceStore:
    assert store.references is not None
    return store.references


def _archive(store: Backend) -> ArchiveStore:
    assert store.archive is not None
    return store.archive


async def _ended(
    store: Backend, state: JobState, after: Mark | None, limit: int, want: frozenset[str], most: int, at: Stamp
) -> EndedPage:
    return await _archive(store).ended(state, after, limit, want, most, at)


def _mark(record: Record) -> Mark:
    return Mark(record.finished_at or 0, record.id)
