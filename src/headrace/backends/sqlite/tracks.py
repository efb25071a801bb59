"""The sheets of trackers in a SQLite file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.sqlite.connection_thread import Capability
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam import tracks as t
from headrace.seam.records import Stamp

_SQL = load("track")


class SqliteTracks(Capability):
    """The operations of a :class:`~headrace.seam.tracks.TrackStore`."""

    async def read(self, tracker: str, points: Sequence[tuple[str, int]], at: Stamp = None) -> t.Sheets:
        return await self._read(lambda session, now: _read(session, tracker, points, now), at)

    async def walk(self, tracker: str, tier: str, start: int, limit: int = 100, at: Stamp = None) -> t.Sheets:
        asked = (tracker, tier, start, limit)
        return await self._read(
            lambda session, now: t.Sheets(now, [_sheet(row) for row in session.rows(_SQL["walk"], asked)]), at
        )

    async def write(self, tracker: str, batch: Sequence[t.Write | t.Check | t.Erase], at: Stamp = None) -> bool:
        grows = any(isinstance(change, t.Write) and change.expect == 0 for change in batch)
        return await self._write(lambda tx, _: _write(tx, tracker, batch), at, weight=len(batch), grows=grows)

    async def due(self, tracker: str, limit: int, hold: int, at: Stamp = None) -> t.Sheets:
        return await self._write(
            lambda tx, now: _due(tx, tracker, limit, hold, now),
            at,
            peek=lambda session, now: _nothing_due(session, tracker, now),
            weight=limit,
        )

    async def tally(self, tracker: str | None = None) -> list[t.Tally]:
        return await self._read(
            lambda session, _: [t.Tally(*row) for row in session.rows(_SQL["tally"], (tracker,))], None
        )


def _read(session: Session, tracker: str, points: Sequence[tuple[str, int]], now: int) -> t.Sheets:
    sids = {sid for tier, point in points for [sid] in session.rows(_SQL["covering"], (tracker, tier, point))}
    sheets = [_sheet(session.first(_SQL["sheet"], (sid,))) for sid in sids]
    return t.Sheets(now, sorted(sheets, key=lambda sheet: (sheet.tier, sheet.low)))


def _sheet(row: Sequence[Any]) -> t.Sheet:
    tier, low, version, due_at, run, ran_at, subjects, *content = row
    return t.Sheet(
        tier=tier, low=low, version=version, due_at=due_at, run=run, ran_at=ran_at, subjects=subjects,
        content=content[0] if content else b"",
    )  # fmt: skip


def _write(tx: Transaction, tracker: str, batch: Sequence[t.Write | t.Check | t.Erase]) -> bool:
    sids: list[int | None] = []
    for change in batch:
        named = change.sheet if isinstance(change, t.Write) else change
        sid, version = tx.first(_SQL["known"], (tracker, named.tier, named.low)) or (None, 0)
        if version != change.expect:
            return False
        sids.append(sid)
    for sid, change in zip(sids, batch, strict=True):
        if isinstance(change, t.Write):
            _put(tx, tracker, sid, change.sheet)
        elif isinstance(change, t.Erase) and sid is not None:
            tx.execute(_SQL["erase"], (sid,))
            tx.execute(_SQL["empty"], (sid,))
    return True


def _put(tx: Transaction, tracker: str, sid: int | None, sheet: t.Sheet) -> None:
    state = (sheet.version, sheet.due_at, sheet.run, sheet.ran_at, sheet.subjects, len(sheet.content))
    if sid is None:
        [sid] = tx.first(_SQL["add"], (tracker, sheet.tier, sheet.low, *state))
    else:
        tx.execute(_SQL["change"], (sid, *state))
    tx.execute(_SQL["fill"], (sid, sheet.content))


def _nothing_due(session: Session, tracker: str, now: int) -> t.Sheets | None:
    [first] = session.first(_SQL["next"], (tracker,)) or (None,)
    if first is not None and first <= now:
        return None
    return t.Sheets(now, [], None if first is None else first - now)


def _due(tx: Transaction, tracker: str, limit: int, hold: int, now: int) -> t.Sheets:
    found = tx.rows(_SQL["due"], (tracker, now, limit))
    for sid, *_ in found:
        tx.execute(_SQL["hold"], (sid, now + hold))
    [first] = (tx.first(_SQL["next"], (tracker,)) if len(found) < limit else None) or (None,)
    return t.Sheets(now, [_sheet(row) for _, *row in found], None if first is None else first - now)
