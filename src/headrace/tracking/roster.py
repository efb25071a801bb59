"""The subjects of one tracker: add, move, remove, find, and what a visit changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Protocol, TypeVar

from headrace.core.backoff import Backoff
from headrace.core.clock import Clock
from headrace.errors import Unavailable
from headrace.seam.instants import to_datetime
from headrace.seam.records import Stamp
from headrace.seam.tracks import POINTS, Sheet, Tally, TrackStore
from headrace.tracking.ground import Ground, last_visit
from headrace.tracking.pages import Entry, point, unpack
from headrace.tracking.subject import Subject, Visited

R = TypeVar("R")
_PAGE = 200
"""Subjects that are changed in one step."""
_TRIES = 50
"""How often a change is repeated because others changed the same sheets."""
_SECOND = 1_000_000


class Surroundings(Protocol):
    """What a client has. It may change, as in a child process."""

    clock: Clock

    @property
    def rng(self) -> Random:
        """Chance."""


class Roster:
    """All subjects of a tracker. A change reads the sheets that it concerns, and writes them if nobody else has in
    between; otherwise it is made again. Nothing is locked meanwhile."""

    def __init__(
        self,
        tracker: str,
        intervals: Mapping[str, int],
        store: Callable[[], Awaitable[TrackStore]],
        surroundings: Callable[[], Surroundings],
    ) -> None:
        self._tracker = tracker
        self._intervals = intervals
        self._store = store
        self._surroundings = surroundings

    async def add(self, names: Iterable[str], tier: str) -> int:
        """Those that are tracked already stay as they are; returns how many are new."""

        def work(ground: Ground, page: Sequence[str]) -> int:
            added = ground.now // _SECOND + 1  # above the second of a visit that is under way
            new = [name for name in page if ground.find(name) is None]
            for name in new:
                ground.put(ground.place(tier, name), name, Entry(added, 0))
            return len(new)

        return await self._in_pages(names, work)

    async def move(self, names: Iterable[str], tier: str) -> int:
        """Returns how many changed their tier; unknown ones are left out."""

        def work(ground: Ground, page: Sequence[str]) -> int:
            moved = 0
            for name in page:
                place = ground.find(name)
                if place is not None and place[0] != tier:
                    _move(ground, place, name, tier)
                    moved += 1
            return moved

        return await self._in_pages(names, work)

    async def remove(self, names: Iterable[str]) -> int:
        """Returns how many were tracked."""

        def work(ground: Ground, page: Sequence[str]) -> int:
            found = [(place, name) for name in page if (place := ground.find(name)) is not None]
            for place, name in found:
                ground.take(place, name)
            return len(found)

        return await self._in_pages(names, work)

    async def get(self, names: Sequence[str]) -> list[Subject | None]:
        """In order; None for those that are not tracked."""
        found: list[Subject | None] = []
        for start in range(0, len(names), _PAGE):
            page = names[start : start + _PAGE]
            ground = await self._ground(self._points(page, self._intervals))
            for name in page:
                place = ground.find(name)
                sheet = None if place is None else ground.sheet(place)
                if place is None or sheet is None:
                    found.append(None)
                else:
                    found.append(_subject(sheet, name, ground.entry(place, name)))
        return found

    async def all(self, tiers: Collection[str]) -> AsyncIterator[Subject]:
        """Every subject of these tiers, in no order. One that changes its tier meanwhile may come twice, or not."""
        for tier in tiers:
            start = 0
            while start < POINTS:
                store = await self._store()
                sheets = (await store.walk(self._tracker, tier, start, 100, self._stamp())).sheets
                for sheet in sheets:
                    for name, entry in unpack(sheet.content).items():
                        yield _subject(sheet, name, entry)
                start = sheets[-1].low + 1 if len(sheets) == 100 else POINTS

    async def tally(self) -> list[Tally]:
        """The tiers in numbers."""
        return await (await self._store()).tally(self._tracker)

    # -- visits

    async def begin(self, tier: str, low: int, run: int) -> tuple[int, Sheet, list[Subject]] | None:
        """The subjects to visit, their sheet, and since when they are looked at; None: somebody has done it already."""
        found = await (await self._store()).read(self._tracker, [(tier, low)], self._stamp())
        if not found.sheets or (sheet := found.sheets[0]).low != low or sheet.run != run:
            return None
        return found.now, sheet, [_subject(sheet, name, entry) for name, entry in unpack(sheet.content).items()]

    async def end(
        self, tier: str, low: int, run: int, began: int, subjects: Sequence[Subject], visited: Visited
    ) -> bool:
        """Follow the answer of a visit, and let the sheet wait for its next one; False: somebody was faster, and
        nothing changed.

        If the sheet was divided meanwhile, its other parts have been visited too.
        """
        names = [subject.id for subject in subjects]
        points = {(tier, low), (tier, max(low - 1, 0)), *self._points(names, [tier])}
        points |= {(to, point(name)) for name, to in visited.move.items()}

        def work(ground: Ground) -> bool | None:
            here = ground.sheet((tier, low))
            if here is None or here.run != run:
                return None
            places = {name: place for name in names if ground.holds(place := ground.place(tier, name), name)}
            for place in {(tier, low), *places.values()}:
                sheet = ground.sheet(place)
                if sheet is not None and sheet.run == run and sheet.low >= low:
                    ground.advance(place, began)
            for name, place in places.items():
                if name in visited.stop:
                    ground.take(place, name)
                elif name in visited.move:
                    _move(ground, place, name, visited.move[name])
            ground.join((tier, low))
            return True

        return bool(await self._change(sorted(points), work))

    # -- how

    def _stamp(self) -> Stamp:
        return self._surroundings().clock.stamp()

    def _points(self, names: Iterable[str], tiers: Collection[str]) -> list[tuple[str, int]]:
        return [(tier, at) for at in map(point, names) for tier in tiers]

    async def _in_pages(self, names: Iterable[str], work: Callable[[Ground, Sequence[str]], int]) -> int:
        given = [*dict.fromkeys(names)]
        done = 0
        for start in range(0, len(given), _PAGE):
            page = given[start : start + _PAGE]
            points = self._points(page, self._intervals)
            done += await self._change(points, lambda ground, page=page: work(ground, page)) or 0  # type: ignore[misc]
        return done

    async def _ground(self, points: Sequence[tuple[str, int]]) -> Ground:
        return Ground(await (await self._store()).read(self._tracker, points, self._stamp()), self._intervals)

    async def _change(self, points: Sequence[tuple[str, int]], work: Callable[[Ground], R | None]) -> R | None:
        """Read, work, write; again, if somebody else wrote in between. Work that comes to nothing writes nothing."""
        rng = self._surroundings().rng
        backoff = Backoff(rng)
        for _ in range(_TRIES):
            ground = await self._ground(points)
            done = work(ground)
            if not done:
                return done
            store = await self._store()
            if await store.write(self._tracker, ground.changes(rng), self._stamp()):
                return done
            await asyncio.sleep(backoff.pause())
        raise Unavailable(
            f"tracker {self._tracker}: the same subjects were changed by others {_TRIES} times in a row; try again"
        )


def _move(ground: Ground, place: tuple[str, int], name: str, tier: str) -> None:
    last = ground.last(place, name)
    ground.put(ground.place(tier, name), name, Entry(ground.take(place, name).added, last))


def _subject(sheet: Sheet, name: str, entry: Entry) -> Subject:
    last = last_visit(sheet, entry)
    return Subject(
        name,
        sheet.tier,
        to_datetime(entry.added * _SECOND),
        to_datetime(last * _SECOND) if last else None,
        to_datetime(sheet.due_at),
    )
