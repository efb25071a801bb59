"""Schedules and the ledger of their ticks on PostgreSQL: each operation is one call of a function on the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from headrace.backends.postgres import rows as shapes
from headrace.backends.postgres.arrays import (
    bigints,
    booleans,
    byteas,
    integers,
    maybe_uuids,
    smallints,
    texts,
    uuids,
)
from headrace.seam.records import JobId, Stamp, SweepClause, Swept
from headrace.seam.ticks import (
    Drop,
    Look,
    Looked,
    Overlap,
    Plan,
    Save,
    Schedule,
    ScheduleSelector,
    Tick,
    TickNote,
    TickOutcome,
)

Send = Callable[[Iterable[tuple[str, JobId | None]]], None]
"""Puts hints on their way."""

_OUTCOMES = (TickOutcome.FIRED, TickOutcome.SKIPPED, TickOutcome.MISSED)
_OVERLAPS = {Overlap.ALLOW: 0, Overlap.SKIP: 1, Overlap.CANCEL: 2}


class Call(Protocol):
    """Runs a statement by its name; its rows."""

    def __call__(self, name: str, *params: Any) -> Awaitable[list[Any]]: ...


class PostgresTicks:
    """See :class:`headrace.seam.protocol.TickStore`."""

    def __init__(self, call: Call, send: Send) -> None:
        self._call = call
        self._send = send

    async def save(self, batch: Sequence[Save | Drop], at: Stamp = None) -> list[bool]:
        if not batch:
            return []
        [[done]] = await self._call("save", at, *_save_params(batch))
        if done:
            self._send([("schedules:all", None)])
        numbers = set(done)
        return [number in numbers for number in range(1, len(batch) + 1)]

    async def find(self, sel: ScheduleSelector, after: str | None = None, limit: int = 100) -> list[Schedule]:
        names = None if sel.names is None else texts(list(sel.names))
        return [_schedule(row) for row in await self._call("find", names, sel.tenant, sel.queue, after, limit)]

    async def due(self, req: Look, at: Stamp = None) -> Looked:
        *rows, last = await self._call("due", at, req.limit, req.shard, req.shards)
        now, next_at = last[15], last[9]
        return Looked(now, [_schedule(row) for row in rows], None if next_at is None else next_at - now)

    async def plan(self, batch: Sequence[Plan], at: Stamp = None) -> list[list[TickOutcome | None] | None]:
        if not batch:
            return []
        rows = await self._call("plan", at, *_plan_params(batch))
        answers = _answers(batch, rows)
        queues = {
            tick.row.queue
            for plan, outcomes in zip(batch, answers, strict=True)
            for tick, outcome in zip(plan.ticks, outcomes or (), strict=False)
            if outcome is TickOutcome.FIRED and tick.row is not None
        }
        self._send([*shapes.hints(rows), *((f"queue:{queue}", None) for queue in queues)])
        return answers

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[Tick]:
        return [_tick(row) for row in await self._call("history", uuids([uid]), before, limit)]

    async def note(self, batch: Sequence[TickNote], at: Stamp = None) -> None:
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


_NOTHING = Schedule(name="", uid=b"", queue="", definition=b"")


def _save_params(batch: Sequence[Save | Drop]) -> tuple[Any, ...]:
    """The arrays of ``save_v1``. A schedule that goes has nothing but its name."""
    given = [_NOTHING if isinstance(change, Drop) else change.schedule for change in batch]
    return (
        texts([change.name if isinstance(change, Drop) else change.schedule.name for change in batch]),
        bigints([change.expect for change in batch]),
        booleans([isinstance(change, Drop) for change in batch]),
        maybe_uuids([one.uid or None for one in given]),
        texts([one.queue for one in given]),
        byteas([one.definition for one in given]),
        texts([one.tenant for one in given]),
        smallints([one.plan_priority for one in given]),
        smallints([one.bucket for one in given]),
        booleans([one.enabled for one in given]),
        bigints([one.slot for one in given]),
        bigints([one.look_at for one in given]),
        bigints([one.runs for one in given]),
        bigints([one.last_slot for one in given]),
        maybe_uuids([one.last_job for one in given]),
    )


def _plan_params(batch: Sequence[Plan]) -> tuple[Any, ...]:
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


def _answers(batch: Sequence[Plan], rows: Sequence[Any]) -> list[list[TickOutcome | None] | None]:
    """All came to what they were planned for, but for what rows of kind 8 and 9 tell."""
    outcomes: list[TickOutcome | None] = [
        TickOutcome.MISSED if tick.row is None else TickOutcome.FIRED for plan in batch for tick in plan.ticks
    ]
    undone: set[int] = set()
    for kind, *_, number, outcome in (row[:8] for row in rows):
        if kind == 8:
            undone.add(number)
        elif kind == 9:
            outcomes[number - 1] = None if outcome is None else _OUTCOMES[outcome]
    answers: list[list[TickOutcome | None] | None] = []
    start = 0
    for number, plan in enumerate(batch, start=1):
        answers.append(None if number in undone else outcomes[start : start + len(plan.ticks)])
        start += len(plan.ticks)
    return answers


def _schedule(row: Sequence[Any]) -> Schedule:
    (
        name, uid, queue, definition, tenant, rank, bucket, enabled, slot, look_at, runs, last_slot, last_job, version,
        created_at, updated_at,
    ) = row  # fmt: skip
    return Schedule(
        name=name,
        uid=uid,
        queue=queue,
        definition=definition,
        tenant=tenant,
        plan_priority=rank,
        bucket=bucket,
        enabled=enabled,
        slot=slot,
        look_at=look_at,
        runs=runs,
        last_slot=last_slot,
        last_job=last_job,
        version=version,
        created_at=created_at,
        updated_at=updated_at,
    )


def _tick(row: Sequence[Any]) -> Tick:
    slot, run_at, outcome, planned_at, count, job, state, waited, ran = row
    return Tick(
        slot=slot,
        run_at=run_at,
        outcome=_OUTCOMES[outcome],
        planned_at=planned_at,
        count=count,
        job=job,
        state=state,
        waited=waited,
        ran=ran,
    )
