"""Sheets as they were read, changed in memory, and written back if nobody else changed them meanwhile."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from random import Random

from msgspec.structs import replace

from headrace.seam.tracks import POINTS, Check, Erase, Sheet, Sheets, Write
from headrace.tracking.pages import FULL, Entries, Entry, divide, pack, point, size_of, unpack


def next_due(low: int, interval: int, now: int) -> int:
    """When a sheet is due after now. The sheets of a tier are spread evenly over its interval."""
    offset = low * interval // POINTS
    return offset + ((now - offset) // interval + 1) * interval


def last_visit(sheet: Sheet, entry: Entry) -> int:
    """When a subject was last visited, in seconds since 1970; 0: never."""
    ran = (sheet.ran_at or 0) // 1_000_000
    return max(entry.seen, ran if ran >= entry.added else 0)


class Ground:
    """The sheets that some subjects lie on, in all tiers. Where a tier has none, it gets one with the first subject."""

    def __init__(self, found: Sheets, intervals: Mapping[str, int]) -> None:
        self.now = found.now
        self._intervals = intervals
        self._sheets: dict[tuple[str, int], Sheet] = {(one.tier, one.low): one for one in found.sheets}
        self._lows: dict[str, list[int]] = {tier: [] for tier in intervals}
        for one in found.sheets:
            insort(self._lows.setdefault(one.tier, []), one.low)
        self._entries: dict[tuple[str, int], Entries] = {}
        self._changed: set[tuple[str, int]] = set()

    def place(self, tier: str, name: str) -> tuple[str, int]:
        """The sheet that a subject lies on, or would, in this tier."""
        lows = self._lows[tier]
        if not lows:
            self._sheets[tier, 0] = Sheet(tier=tier, low=0, version=0, due_at=0)
            lows.append(0)
        return tier, lows[bisect_right(lows, point(name)) - 1]

    def sheet(self, place: tuple[str, int]) -> Sheet | None:
        """The sheet that begins there."""
        return self._sheets.get(place)

    def holds(self, place: tuple[str, int], name: str) -> bool:
        """Whether a subject is on a sheet."""
        if place not in self._entries and name.encode() not in self._sheets[place].content:
            return False
        return name in self._read(place)

    def entry(self, place: tuple[str, int], name: str) -> Entry:
        """What is known of a subject on a sheet."""
        return self._read(place)[name]

    def find(self, name: str) -> tuple[str, int] | None:
        """The sheet that has the subject, in any tier."""
        return next((place for tier in self._intervals if self.holds(place := self.place(tier, name), name)), None)

    def put(self, place: tuple[str, int], name: str, entry: Entry) -> None:
        """A subject comes to a sheet."""
        self._read(place)[name] = entry
        self._changed.add(place)

    def take(self, place: tuple[str, int], name: str) -> Entry:
        """A subject leaves a sheet."""
        self._changed.add(place)
        return self._read(place).pop(name)

    def advance(self, place: tuple[str, int], ran_at: int) -> None:
        """The subjects of a sheet were visited."""
        sheet = self._sheets[place]
        due_at = next_due(sheet.low, self._intervals[sheet.tier], self.now)
        self._sheets[place] = replace(sheet, run=sheet.run + 1, ran_at=ran_at, due_at=due_at)
        self._changed.add(place)

    def last(self, place: tuple[str, int], name: str) -> int:
        """When a subject was last visited, in seconds since 1970; 0: never."""
        return last_visit(self._sheets[place], self._read(place)[name])

    def join(self, place: tuple[str, int]) -> None:
        """A sheet with few subjects is joined to the one before it, if that was read, and both fit."""
        tier, low = place
        lows = self._lows[tier]
        index = lows.index(low) - 1
        if index < 0 or sum(map(size_of, self._read(place))) > FULL // 4:
            return
        before = tier, lows[index]
        if sum(map(size_of, (*self._read(before), *self._read(place)))) <= FULL // 2:
            for name in [*self._read(place)]:
                last = self.last(place, name)
                self.put(before, name, Entry(self.take(place, name).added, last))

    def _read(self, place: tuple[str, int]) -> Entries:
        entries = self._entries.get(place)
        if entries is None:
            entries = self._entries[place] = unpack(self._sheets[place].content)
        return entries

    def changes(self, rng: Random) -> list[Write | Check | Erase]:
        """What to write; and what must not have changed, because it was looked at."""
        return [change for place in self._sheets for change in self._change(place, lambda: rng.randrange(1, POINTS))]

    def _change(self, place: tuple[str, int], version: Callable[[], int]) -> Iterator[Write | Check | Erase]:
        sheet = self._sheets[place]
        if place not in self._changed:
            yield Check(sheet.tier, sheet.low, sheet.version)
            return
        entries = self._read(place)
        if not entries and sheet.low:
            yield Erase(sheet.tier, sheet.low, sheet.version)
            return
        for low, part in divide(sheet.low, entries):
            due_at = sheet.due_at
            if low != sheet.low or not sheet.subjects:
                fresh = next_due(low, self._intervals[sheet.tier], self.now)
                due_at = fresh if sheet.ran_at is None or not sheet.subjects else min(due_at, fresh)
            new = replace(sheet, low=low, version=version(), due_at=due_at, subjects=len(part), content=pack(part))
            yield Write(new, sheet.version if low == sheet.low else 0)
