"""The end of segments: by hour, and before that if nothing refers to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Set
from contextlib import suppress
from datetime import date

from headrace.core.clock import Clock
from headrace.errors import ConfigError
from headrace.payloads.objects import Objects
from headrace.payloads.reference import FOLDER, day_folder, day_number, hour_folder

_HOUR = 3_600_000_000


class SegmentHours:
    """Finds and deletes segments.

    ``grace`` is in microseconds, and longer than any handler runs: who has read a reference may still load it, and who
    has stowed a cell may still be about to insert its row.
    """

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock

    async def days(self) -> list[date]:
        """The days that have segments, oldest first; days to come too, for jobs that are due then.

        Some servers list a day for a while after its last segment is gone.
        """
        found = []
        for name in await self._objects.folders(FOLDER):
            with suppress(ValueError):
                found.append(date.fromisoformat(name))
        return found

    async def before(self, hour: int) -> list[int]:
        """The hours before this one that have segments, oldest first."""
        found = []
        for day in await self.days():
            first = 24 * day_number(day)
            if first < hour:
                names = await self._objects.folders(day_folder(day))
                found += [first + int(name) for name in names if name.isdecimal() and int(name) < min(24, hour - first)]
        return found

    async def delete(self, hour: int, grace: int) -> int:
        """Delete the segments of an hour that is over. How many; those that were just written stay.

        Nothing may refer to them any more: rows that still live have got other references, at least ``grace`` ago.
        """
        over = (self._clock.now() - grace) // _HOUR
        if hour >= over:
            raise ConfigError(
                f"segments to delete: expected an hour before {over}, got {hour}; wait for its grace to end"
            )
        deleted = 0
        async for keys in self._written_before(hour_folder(hour), grace):
            await self._objects.delete(keys)
            deleted += len(keys)
        return deleted

    async def orphans(self, day: date, referred: Set[str], grace: int) -> AsyncIterator[list[str]]:
        """Pages of the keys of a day's segments that are not among ``referred`` and not just written.

        ``referred`` has the keys of all references of living rows to the day; it is read no earlier than ``grace`` ago.
        """
        async for keys in self._written_before(day_folder(day), grace):
            if found := [key for key in keys if key not in referred]:
                yield found

    async def _written_before(self, folder: str, grace: int) -> AsyncIterator[list[str]]:
        before = self._clock.now() - grace
        async for page in self._objects.pages(folder):
            if keys := [one.key for one in page if one.written < before]:
                yield keys
