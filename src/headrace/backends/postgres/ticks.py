"""Schedules and the ledger of their ticks on PostgreSQL: each operation is one call of a function on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from headrace.backends.postgres import rows as shapes
from headrace.backends.postgres.arrays import bigints, booleans, integers, smallints, texts, uuids
from headrace.backends.postgres.capability import Capability
from headrace.backends.postgres.composites import OUTCOMES, rows_of
from headrace.seam import ticks as t
from headrace.seam.records import Stamp, SweepClause, Swept

_OVERLAPS = {t.Overlap.ALLOW: 0, t.Overlap.SKIP: 1, t.Overlap.CANCEL: 2}


class PostgresTicks(Capability):
    """See :class:`headrace.seam.protocol.TickStore`."""

    async def save(self, batch: Sequence[t.Save | t.Drop], at: Stamp = None) -> list[bool]:
        if not batch:
            return []
        [[done]] = await self._call("save", at, *_save_params(batch))
        if done:
            self._send([("schedules:all", None)])
        numbers = set(done)
        return [number in numbers for number in range(1, len(batch) + 1)]

    async def find(self, sel: t.ScheduleSelector, after: str | None = None, limit: int = 100) -> list[t.Schedule]:
        names = None if sel.names is None else texts(list(sel.names))
        return [_schedule(row) for row in await self._call("find", names, sel.tenant, sel.queue, after, limit)]

    async def due(self, req: t.Look, at: Stamp = None) -> t.Looked:
        *rows, last = await self._call("due", at, req.limit, req.share, req.shares)
        now, next_at = last[15], last[9]
        return t.Looked(now, [_schedule(row) for row in rows], None if next_at is None else next_at - now)

    async def plan(self, batch: Sequence[t.Plan], at: Stamp = None) -> list[list[t.TickOutcome | None] | None]:
        if not batch:
            return []
        notices = shapes.notices(await self._call("plan", at, *_plan_params(batch)))
        answers = _answers(batch, notices)
        queues = {
            tick.row.queue
            for plan, outcomes in zip(batch, answers, strict=True)
            for tick, outcome in zip(plan.ticks, outcomes or (), strict=False)
            if outcome is t.TickOutcome.FIRED and tick.row is not None
        }
        self._send([*shapes.hints(notices), *((f"queue:{queue}", None) for queue in queues)])
        return answers

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[t.Tick]:
        return [_tick(row) for row in await self._call("history", uuids([uid]), before, limit)]

    async def note(self, batch: Sequence[t.TickNote], at: Stamp = None) -> None:
        if batch:
            await self._call(
                "note",
                uuids([note.uid for note in batch]),
                bigints([note.slot for note in batch]),
                texts([note.state for note in batch]),
                bigints([note.waited for note in batch]),
                bigints([note.ran for note in batch]),
            )

    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        """Remove ticks from the ledger, as ``Backend.sweep`` says."""
        [found] = await self._call(
            "sweep_ticks", at, clause.older_than, clause.max_count, clause.max_bytes, clause.limit, clause.dry_run
        )
        return Swept(*found)


def _save_params(batch: Sequence[t.Save | t.Drop]) -> tuple[Any, ...]:
    """The arrays of ``save_v1``. A schedule that is dropped has nothing but its name."""
    schedules = [
        change.schedule
        if isinstance(change, t.Save)
        else t.Schedule(name=change.name, uid=b"", queue="", definition=b"")
        for change in batch
    ]
    expecting = [replace(one, version=change.expect) for one, change in zip(schedules, batch, strict=True)]
    return rows_of("schedule_row", expecting), booleans([isinstance(change, t.Drop) for change in batch])


def _plan_params(batch: Sequence[t.Plan]) -> tuple[Any, ...]:
    """The arrays of ``plan_v1``."""
    ticks = [tick for plan in batch for tick in plan.ticks]
    return (
        texts([plan.name for plan in batch]),
        uuids([plan.uid for plan in batch]),
        bigints([plan.version for plan in batch]),
        bigints([plan.slot for plan in batch]),
        bigints([plan.look_at for plan in batch]),
        integers([len(plan.ticks) for plan in batch]),
        bigints([tick.slot for tick in ticks]),
        bigints([tick.run_at for tick in ticks]),
        integers([tick.count for tick in ticks]),
        smallints([_OVERLAPS[tick.overlap] for tick in ticks]),
        booleans([tick.row is not None for tick in ticks]),
        *shapes.insert_params([tick.row for tick in ticks if tick.row is not None]),
    )


def _answers(batch: Sequence[t.Plan], notices: Sequence[shapes.Notice]) -> list[list[t.TickOutcome | None] | None]:
    """All came to what they were planned for, but for what the notices tell."""
    outcomes: list[t.TickOutcome | None] = [
        t.TickOutcome.MISSED if tick.row is None else t.TickOutcome.FIRED for plan in batch for tick in plan.ticks
    ]
    undone: set[int] = set()
    for plan_number, tick, outcome in (notice.planned for notice in notices if notice.planned):
        if tick is None:
            undone.add(plan_number)
        else:
            outcomes[tick - 1] = None if outcome is None else OUTCOMES[outcome]
    answers: list[list[t.TickOutcome | None] | None] = []
    start = 0
    for number, plan in enumerate(batch, start=1):
        answers.append(None if number in undone else outcomes[start : start + len(plan.ticks)])
        start += len(plan.ticks)
    return answers


def _schedule(row: Sequence[Any]) -> t.Schedule:
    """The columns of ``schedule_row`` are the fields, in order."""
    return t.Schedule(**dict(zip(t.Schedule.__struct_fields__, row, strict=True)))


def _tick(row: Sequence[Any]) -> t.Tick:
    """The columns of ``history_v1`` are the fields, in order."""
    tick = dict(zip(t.Tick.__struct_fields__, row, strict=True))
    return t.Tick(**tick | {"outcome": OUTCOMES[tick["outcome"]]})
