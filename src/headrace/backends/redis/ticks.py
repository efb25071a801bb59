"""Schedules and their ticks, in one shard: each operation is one call of a script on the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from heapq import merge
from typing import Any, NamedTuple

from headrace.backends.portions import cut, slices
from headrace.backends.redis import marshalling, schedule_layout
from headrace.backends.redis.job_layout import encode
from headrace.backends.redis.marshalling import at_arg, or_false
from headrace.backends.redis.schedule_layout import TICK_BYTES, Alteration, Planned, Stored
from headrace.seam.records import Stamp, SweepClause, Swept
from headrace.seam.ticks import Drop, Look, Looked, Plan, Save, Schedule, ScheduleSelector, Tick, TickNote, TickOutcome

LOOK = 2_000
"""How many schedules one call looks at."""
_MOST = 1_000
"""How many plans and ticks one call carries out."""

Outcomes = list[list[TickOutcome | None] | None]


class Found(NamedTuple):
    """Schedules that match."""

    stored: list[Stored]
    upto: str
    """How far it has looked; empty: to the end."""
    moving: bool
    """Whether any is on its way to another shard."""


class Due(NamedTuple):
    """Schedules that must be looked at."""

    now: int
    stored: list[Stored]
    next_in: int | None


class First(NamedTuple):
    """The ticks that were planned first."""

    now: int
    total: int
    ticks: Sequence[Planned]


class ShardTicks:
    """The operations of a :class:`~headrace.seam.protocol.TickStore`, and their parts."""

    def __init__(self, run: Callable[..., Awaitable[Any]], away: marshalling.Away = marshalling.nowhere) -> None:
        self._run = run
        self._away = away

    async def save(self, batch: Sequence[Save | Drop], at: Stamp = None) -> list[bool]:
        return await self.change([_alteration(change) for change in batch], at)

    async def change(self, batch: Sequence[Alteration], at: Stamp) -> list[bool]:
        """Returns whether each was done. A batch that only removes schedules works even if the memory is full."""
        if not batch:
            return []
        name = "drop" if all(one.wanted is None for one in batch) else "save"
        return [done == 1 for done in await self._run(name, at_arg(at), *schedule_layout.save_args(batch))]

    async def find(self, sel: ScheduleSelector, after: str | None = None, limit: int = 100) -> list[Schedule]:
        return [one.schedule for one in (await self.search(sel, after, limit)).stored]

    async def search(self, sel: ScheduleSelector, after: str | None, limit: int) -> Found:
        """Like ``find``, with more detail."""
        stored: list[Stored] = []
        moving = False
        for names, above in _pieces(sel, after):
            while len(stored) < limit and (names is None or names):
                found = await self._search(names, above, sel, limit - len(stored))
                stored += found.stored
                moving = moving or found.moving
                above = found.upto
                if not above:
                    break
                names = None if names is None else [name for name in names if name > above]
        return Found(stored, "", moving)

    async def _search(self, names: Sequence[str] | None, above: str, sel: ScheduleSelector, limit: int) -> Found:
        wanted = [or_false(sel.tenant), or_false(sel.queue)]
        named = b"" if names is None else encode(names)
        flat, upto, moving = await self._run("find", named, above, encode(wanted), limit, LOOK)
        return Found(schedule_layout.unpack_schedules(flat), upto.decode(), bool(moving))

    async def due(self, req: Look, at: Stamp = None) -> Looked:
        found = await self.look(req, at)
        return Looked(found.now, [one.schedule for one in found.stored], found.next_in)

    async def look(self, req: Look, at: Stamp) -> Due:
        """Like ``due``, with more detail."""
        now, flat, next_in = await self._run("due", at_arg(at), req.limit, req.share, req.shares)
        return Due(int(now), schedule_layout.unpack_schedules(flat), None if int(next_in) < 0 else int(next_in))

    async def plan(self, batch: Sequence[Plan], at: Stamp = None) -> Outcomes:
        found: Outcomes = []
        for piece in cut(batch, lambda plan: 1 + len(plan.ticks), _MOST):
            found += schedule_layout.outcomes(
                await self._run("plan", at_arg(at), *schedule_layout.plan_args(piece, self._away))
            )
        return found

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[Tick]:
        found = await self._run("history", uid, "" if before is None else before, limit)
        return [schedule_layout.unpack_tick(packed) for packed in found]

    async def note(self, batch: Sequence[TickNote], at: Stamp = None) -> None:
        await self.keep(batch)

    async def keep(self, batch: Sequence[TickNote]) -> list[TickNote]:
        """Note what became of ticks. Returns the notes whose ticks are not here."""
        if not batch:
            return []
        return [batch[number - 1] for number in await self._run("note", *schedule_layout.note_args(batch))]

    # -- sweep

    async def sweep(self, clause: SweepClause, at: Stamp) -> Swept:
        """Remove ticks that are too old or too many."""
        look = await self.first(clause.limit + 1, at)
        [doomed], more = condemn([look], clause)
        removed = len(doomed) if clause.dry_run else await self.forget(doomed)
        return Swept(removed, removed * TICK_BYTES, look.total - removed, more)

    async def first(self, count: int, at: Stamp) -> First:
        """The ticks that were planned first."""
        now, total, flat = await self._run("planned", at_arg(at), count)
        return First(int(now), total, schedule_layout.unpack_planned(flat))

    async def forget(self, ticks: Sequence[Planned]) -> int:
        """Remove those of these ticks that have not changed. Returns how many."""
        flat = [part for tick in ticks for part in (tick.name, tick.planned_at)]
        gone: int = await self._run("forget", *flat) if flat else 0
        return gone

    # -- what shards ask each other

    async def whose(self, names: Sequence[str]) -> tuple[dict[str, Stored], list[str]]:
        """The schedules of these names, without their definitions; and the names of those that are on their way to
        another shard."""
        found, leaving = await self._run("whose", encode(names))
        known = {
            name: schedule_layout.unpack_schedule(name.encode(), packed, b"")
            for name, packed in zip(names, found, strict=True)
            if packed is not None
        }
        return known, [name.decode() for name in leaving]

    async def known(self, uid: bytes, slots: Sequence[int]) -> set[int]:
        """Which of these slots have fired."""
        packed = b"".join(slot.to_bytes(8, "big", signed=True) for slot in slots)
        return {slots[number - 1] for number in await self._run("known", uid, packed)}


def condemn(looks: Sequence[First], clause: SweepClause) -> tuple[list[list[Planned]], bool]:
    """What goes in each shard, and whether there is more."""
    total = sum(look.total for look in looks)
    excess = 0 if clause.max_count is None else total - clause.max_count
    if clause.max_bytes is not None:
        excess = max(excess, total - clause.max_bytes // TICK_BYTES)
    doomed: list[list[Planned]] = [[] for _ in looks]
    first = merge(*([(tick, shard) for tick in look.ticks] for shard, look in enumerate(looks)))
    for going, (tick, shard) in enumerate(first):
        old = clause.older_than is not None and tick.planned_at <= looks[shard].now - clause.older_than
        if not old and going >= excess:
            break
        if going == clause.limit:
            return doomed, True
        doomed[shard].append(tick)
    return doomed, False


def _alteration(change: Save | Drop) -> Alteration:
    if isinstance(change, Drop):
        return Alteration(change.name, change.expect)
    return Alteration(change.schedule.name, change.expect, change.schedule)


def _pieces(sel: ScheduleSelector, after: str | None) -> Iterator[tuple[Sequence[str] | None, str]]:
    """Names in their order, as many as one call asks for; None: all."""
    if sel.names is None:
        yield None, after or ""
        return
    names = sorted({name for name in sel.names if after is None or name > after})
    for piece in slices(names, LOOK):
        yield piece, ""
