"""The sheets of trackers, in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import nsmallest

from msgspec.structs import replace

from headrace.backends.memory.capability import Capability
from headrace.backends.memory.sheets import TrackerSheets
from headrace.seam.records import Stamp
from headrace.seam.tracks import Check, Erase, Sheets, Tally, Write


class MemoryTracks(Capability):
    """The operations of a :class:`~headrace.seam.tracks.TrackStore`."""

    def _of(self, tracker: str) -> TrackerSheets:
        return self._store.trackers.setdefault(tracker, TrackerSheets())

    async def read(self, tracker: str, points: Sequence[tuple[str, int]], at: Stamp = None) -> Sheets:
        with self._store.lock:
            now, of = self._begin(at), self._of(tracker)
            found = {
                (sheet.tier, sheet.low): sheet
                for tier, point in points
                if (sheet := of.covering(tier, point)) is not None
            }
            return Sheets(now, [found[name] for name in sorted(found)])

    async def walk(self, tracker: str, tier: str, start: int, limit: int = 100, at: Stamp = None) -> Sheets:
        with self._store.lock:
            now, of = self._begin(at), self._of(tracker)
            lows = of.lows.get(tier, [])
            first = bisect_left(lows, start)
            return Sheets(now, [of.sheets[tier, low] for low in lows[first : first + limit]])

    async def write(self, tracker: str, batch: Sequence[Write | Check | Erase], at: Stamp = None) -> bool:
        with self._store.lock:
            self._begin(at)
            of = self._of(tracker)
            for change in batch:
                named = change.sheet if isinstance(change, Write) else change
                known = of.sheets.get((named.tier, named.low))
                if change.expect != (0 if known is None else known.version):
                    return False
            for change in batch:
                if isinstance(change, Write):
                    of.put(change.sheet)
                elif isinstance(change, Erase) and change.expect:
                    of.remove(change.tier, change.low)
            return True

    async def due(self, tracker: str, limit: int, hold: int, at: Stamp = None) -> Sheets:
        with self._store.lock:
            now, of = self._begin(at), self._of(tracker)
            due = ((look_at, *name) for name, look_at in of.look_at.items() if look_at <= now)
            taken = [(tier, low) for _, tier, low in nsmallest(limit, due)]
            for name in taken:
                of.look_at[name] = now + hold
            next_at = min(of.look_at.values(), default=None) if len(taken) < limit else None
            return Sheets(
                now,
                [replace(of.sheets[name], content=b"") for name in taken],
                None if next_at is None else next_at - now,
            )

    async def tally(self, tracker: str | None = None) -> list[Tally]:
        with self._store.lock:
            names = sorted(self._store.trackers) if tracker is None else [tracker]
            return [one for name in names for one in self._tally(name)]

    def _tally(self, tracker: str) -> Iterator[Tally]:
        of = self._of(tracker)
        for tier, lows in sorted(of.lows.items()):
            if lows:
                sheets = [of.sheets[tier, low] for low in lows]
                subjects = sum(sheet.subjects for sheet in sheets)
                yield Tally(tracker, tier, len(sheets), subjects, sum(len(sheet.content) for sheet in sheets))
