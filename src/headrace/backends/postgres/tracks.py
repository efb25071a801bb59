"""The sheets of trackers on PostgreSQL: each operation is one call of a function on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.postgres.arrays import bigints, byteas, integers, smallints, texts
from headrace.backends.postgres.capability import Capability
from headrace.seam.records import Stamp
from headrace.seam.tracks import Check, Erase, Sheet, Sheets, Tally, Write

_KINDS = {Write: 0, Check: 1, Erase: 2}
_NONE = Sheet(tier="", low=0, version=0, due_at=0)
"""For those that are not written."""


class PostgresTracks(Capability):
    """The operations of a :class:`~headrace.seam.tracks.TrackStore`."""

    async def read(self, tracker: str, points: Sequence[tuple[str, int]], at: Stamp = None) -> Sheets:
        tiers, numbers = [tier for tier, _ in points], [point for _, point in points]
        return _sheets(await self._call("sheets", at, tracker, texts(tiers), bigints(numbers)))

    async def walk(self, tracker: str, tier: str, start: int, limit: int = 100, at: Stamp = None) -> Sheets:
        return _sheets(await self._call("walk_sheets", at, tracker, tier, start, limit))

    async def write(self, tracker: str, batch: Sequence[Write | Check | Erase], at: Stamp = None) -> bool:
        if not batch:
            return True
        named = [change.sheet if isinstance(change, Write) else change for change in batch]
        sheets = [change.sheet if isinstance(change, Write) else _NONE for change in batch]
        [[done]] = await self._call(
            "write_sheets",
            tracker,
            smallints([_KINDS[type(change)] for change in batch]),
            texts([one.tier for one in named]),
            bigints([one.low for one in named]),
            bigints([change.expect for change in batch]),
            bigints([sheet.version for sheet in sheets]),
            bigints([sheet.due_at for sheet in sheets]),
            bigints([sheet.run for sheet in sheets]),
            bigints([sheet.ran_at for sheet in sheets]),
            integers([sheet.subjects for sheet in sheets]),
            byteas([sheet.content for sheet in sheets]),
        )
        return bool(done)

    async def due(self, tracker: str, limit: int, hold: int, at: Stamp = None) -> Sheets:
        *rows, last = await self._call("due_sheets", at, tracker, limit, hold)
        now, next_at = last[0], last[4]
        return Sheets(now, [_sheet(row) for row in rows], None if next_at is None else next_at - now)

    async def tally(self, tracker: str | None = None) -> list[Tally]:
        return [Tally(*row) for row in await self._call("tally_sheets", tracker)]


def _sheets(rows: Sequence[Any]) -> Sheets:
    return Sheets(rows[0][0], [_sheet(row) for row in rows if row[1] is not None])


def _sheet(row: Sequence[Any]) -> Sheet:
    _, tier, low, version, due_at, run, ran_at, subjects, content = row
    return Sheet(
        tier=tier, low=low, version=version, due_at=due_at, run=run, ran_at=ran_at, subjects=subjects, content=content
    )
