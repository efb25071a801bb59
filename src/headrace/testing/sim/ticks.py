"""Schedules behind a bad network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.seam.protocol import TickStore
from headrace.seam.records import Stamp
from headrace.seam.ticks import Drop, Look, Looked, Plan, Save, Schedule, ScheduleSelector, Tick, TickNote, TickOutcome

Call = Callable[[str, Any, Stamp, Callable[[int], Awaitable[Any]]], Awaitable[Any]]
"""Carry an operation over the network, under its name and with its arguments."""


class FaultyTicks:
    """The schedules of another store as one node sees them; every call is recorded, like those of jobs."""

    def __init__(self, inner: TickStore, call: Call) -> None:
        self._inner = inner
        self._call = call

    async def save(self, batch: Sequence[Save | Drop], at: Stamp = None) -> list[bool]:
        batch = tuple(batch)
        answer: list[bool] = await self._call("save", (batch,), at, lambda now: self._inner.save(batch, now))
        return answer

    async def find(self, sel: ScheduleSelector, after: str | None = None, limit: int = 100) -> list[Schedule]:
        args = (sel, after, limit)
        found: list[Schedule] = await self._call("find", args, None, lambda now: self._inner.find(*args))
        return found

    async def due(self, req: Look, at: Stamp = None) -> Looked:
        looked: Looked = await self._call("due", (req,), at, lambda now: self._inner.due(req, now))
        return looked

    async def plan(self, batch: Sequence[Plan], at: Stamp = None) -> list[list[TickOutcome | None] | None]:
        batch = tuple(batch)
        answer: list[list[TickOutcome | None] | None] = await self._call(
            "plan", (batch,), at, lambda now: self._inner.plan(batch, now)
        )
        return answer

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[Tick]:
        args = (uid, before, limit)
        found: list[Tick] = await self._call("history", args, None, lambda now: self._inner.history(*args))
        return found

    async def note(self, batch: Sequence[TickNote], at: Stamp = None) -> None:
        batch = tuple(batch)
        await self._call("note", (batch,), at, lambda now: self._inner.note(batch, now))
