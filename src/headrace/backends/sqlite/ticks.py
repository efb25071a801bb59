"""Schedules and the ledger of their ticks in a SQLite file: each operation is handed to the thread that serves it."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.sqlite import ledger, planning, schedules
from headrace.backends.sqlite.connection_thread import Capability
from headrace.seam import ticks as t
from headrace.seam.records import Stamp


class SqliteTicks(Capability):
    """The operations of a :class:`~headrace.seam.protocol.TickStore`."""

    async def save(self, batch: Sequence[t.Save | t.Drop], at: Stamp = None) -> list[bool]:
        if not batch:
            return []
        new = any(isinstance(change, t.Save) and change.expect == 0 for change in batch)
        return await self._write(lambda tx, now: schedules.save(tx, batch, now), at, weight=len(batch), grows=new)

    async def find(self, sel: t.ScheduleSelector, after: str | None = None, limit: int = 100) -> list[t.Schedule]:
        return await self._read(lambda session, _: schedules.find(session, sel, after, limit), None)

    async def due(self, req: t.Look, at: Stamp = None) -> t.Looked:
        return await self._read(lambda session, now: schedules.due(session, req, now), at)

    async def plan(self, batch: Sequence[t.Plan], at: Stamp = None) -> list[list[t.TickOutcome | None] | None]:
        if not batch:
            return []
        ticks = sum(len(plan.ticks) for plan in batch)
        return await self._write(
            lambda tx, now: planning.plan(tx, batch, now),
            at,
            peek=lambda session, _: planning.nothing_fits(session, batch),
            weight=len(batch) + ticks,
            grows=ticks > 0,
        )

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[t.Tick]:
        return await self._read(lambda session, _: ledger.history(session, uid, before, limit), None)

    async def note(self, batch: Sequence[t.TickNote], at: Stamp = None) -> None:
        if batch:
            await self._write(lambda tx, _: ledger.note(tx, batch), at, weight=len(batch))
