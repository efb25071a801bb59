"""What several stores can do together, beside the ten operations, rules and schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from heapq import nsmallest

from headrace.errors import Unavailable
from headrace.routing.transit import in_transit
from headrace.routing.view import Look, Routed, View, each, present, those_there
from headrace.seam.archive import WEIGHT, EndedPage, Mark, Removal, first_hour
from headrace.seam.documents import Document
from headrace.seam.journal import JournalEntry
from headrace.seam.parts import Part
from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Record, Stamp
from headrace.seam.references import Referrer, Swap
from headrace.types import JobState

StillHome = Callable[[Backend], Awaitable[bool]]
"""Whether a store is still home, now that something was written there."""


async def _settled(view: View) -> View:
    """Jobs in parcels are in no store; a caller that must see all of them comes again later."""
    if await in_transit(view):
        raise Unavailable("jobs are on their way from one store to another just now; this goes on by itself")
    return view


class _AtHome(Routed):
    """It is in the store that is home."""

    def __init__(self, look: Look, still_home: StillHome) -> None:
        super().__init__(look)
        self._still_home = still_home


class RoutedDocuments(_AtHome):
    """Documents are in the store that is home. A write that races with a change of home is repeated, as the move may
    have missed it."""

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        return await present((await self._look()).home.documents).get(names)

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        home = (await self._look()).home
        return await present(home.documents).put(name, body, version) and await self._still_home(home)

    async def find(self, prefix: str, after: str = "", limit: int = 100) -> list[Document]:
        return await present((await self._look()).home.documents).find(prefix, after, limit)


class RoutedJournal(_AtHome):
    """The journal is in the store that is home too. An entry that is written while another store becomes home may be
    there twice afterwards."""

    async def write(self, text: bytes, at: Stamp = None) -> int:
        while True:
            home = (await self._look()).home
            number = await present(home.journal).write(text, at)
            if await self._still_home(home):
                return number

    async def read(self, before: int | None = None, limit: int = 100) -> list[JournalEntry]:
        return await present((await self._look()).home.journal).read(before, limit)


class RoutedParts(Routed):
    """Parts are sent to the store that is home, and read from all: the home may have changed since."""

    async def send(self, batch: Sequence[Part], at: Stamp = None) -> None:
        await present((await self._look()).home.parts).send(batch, at)

    async def read(self, job_id: JobId, after: tuple[int, int], limit: int = 100, at: Stamp = None) -> list[Part]:
        found, _ = await those_there(
            await self._look(), lambda store: present(store.parts).read(job_id, after, limit, at)
        )
        return nsmallest(limit, (one for some in found for one in some), key=lambda one: (one.epoch, one.number))


class RoutedReferences(Routed):
    """References of the jobs of all stores."""

    async def find(
        self, before: int, after: tuple[int, JobId] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Referrer]:
        view = await _settled(await self._look())
        found = await each(view, lambda store: present(store.references).find(before, after, limit, at))
        return nsmallest(limit, (one for some in found for one in some), key=lambda one: (one.hour, one.id))

    async def swap(self, batch: Sequence[Swap], at: Stamp = None) -> list[bool]:
        if not batch:
            return []
        done = await each(await self._look(), lambda store: present(store.references).swap(batch, at))
        return [any(answers) for answers in zip(*done, strict=True)]


class RoutedArchive(Routed):
    """Ended jobs of all stores, in the order of their ends."""

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
        pages = await each(view, lambda store: present(store.archive).ended(state, after, limit, want, max_bytes, at))
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
        return first_hour(await each(await self._look(), lambda store: present(store.archive).removals(after)))

    async def forget_removals(self, most: int, limit: int = 1_000) -> int:
        """Each store may keep as many."""
        view = await self._look()
        return sum(await each(view, lambda store: present(store.archive).forget_removals(most, limit)))


def _mark(record: Record) -> Mark:
    return Mark(record.finished_at or 0, record.id)
