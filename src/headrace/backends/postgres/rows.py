"""Records as the parameters of functions, and rows of functions as records."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from headrace.backends.postgres.arrays import bigints, byteas, texts, uuids
from headrace.backends.postgres.composites import job_rows, settlement_rows
from headrace.backends.settled import check_settled
from headrace.backends.states import STATES
from headrace.errors import InvalidJob
from headrace.seam.policy import STORE
from headrace.seam.records import Cells, JobId, Leased, Reaped, Record, Room, Row, Settlement
from headrace.types import SECTIONS, JobState

_SECTIONS = frozenset(SECTIONS)
_ROOM = Struct(">qq")


def checked(rows: Sequence[Row]) -> None:
    """Refuse what no column is for."""
    for row in rows:
        if not row.cells.keys() <= _SECTIONS:
            raise InvalidJob(f"the sections are {SECTIONS}, but a row came with {tuple(row.cells)}; nothing was stored")


def insert_params(rows: Sequence[Row]) -> tuple[Any, ...]:
    """The names of the queues, and the rows, of ``insert_v1``."""
    checked(rows)
    names, packed = job_rows(rows)
    return texts(names), packed


def room(queue: str, packed: bytes | None) -> Room | None:
    """The room of a FULL row of ``insert_v1``; None: not for this role to know."""
    if packed is None:
        return None
    depth, waiting = _ROOM.unpack_from(packed)
    return Room(STORE if len(packed) > _ROOM.size else queue, depth, waiting)


def weight(row: Row) -> int:
    """Bytes that a job takes up, as retention counts them."""
    names = len(row.task) + len(row.tenant) + len(row.key or "") + len(row.group or "") + len(row.headers or b"")
    return 200 + names + sum(map(len, row.cells.values()))


def are_plain(batch: Sequence[Settlement]) -> bool:
    """Whether nothing but the completion of jobs of one holder is to be recorded, of each once."""
    if not batch:
        return False
    holder, keep = batch[0].holder, batch[0].keep
    return all(_is_plain(s, holder, keep) for s in batch) and len({s.id for s in batch}) == len(batch)


def _is_plain(s: Settlement, holder: str, keep: bool) -> bool:
    return (
        s.state is JobState.COMPLETED
        and s.holder == holder
        and s.keep is keep
        and not s.reason
        and not s.failed_attempt
        and not s.keep_lost
        and s.queue is None
        and s.priority is None
        and not s.cells
        and s.error is None
        and not s.spawn
    )


def complete_params(batch: Sequence[Settlement]) -> tuple[Any, ...]:
    """The arrays of ``complete_v1``."""
    return (
        batch[0].holder,
        uuids([s.id for s in batch]),
        bigints([s.epoch for s in batch]),
        byteas([s.result for s in batch]),
        bigints([s.result_ttl for s in batch]),
        batch[0].keep,
    )


def finish_params(batch: Sequence[Settlement]) -> tuple[Any, ...]:
    """The parameters of ``finish_v1``."""
    check_settled(batch)
    return settlement_rows(batch), *insert_params([row for s in batch for row in s.spawn])


def leased(row: Sequence[Any]) -> Leased:
    """A row of kind 1."""
    return Leased(
        row[1], row[2], row[3], cells(row[17:21]), row[6], row[4], row[5], row[9], row[10], row[11], row[7], row[8],
        row[12], row[13], row[14], row[15], row[16], row[21], row[23],
    )  # fmt: skip


def reaped(row: Sequence[Any]) -> Reaped:
    """A row of kind 2."""
    return Reaped(row[1], row[2], row[3], STATES[row[7]], row[8], row[4], row[5])


def cells(stored: Sequence[bytes | None]) -> Cells:
    """The cells that are there, by section."""
    return {name: cell for name, cell in zip(SECTIONS, stored, strict=True) if cell is not None}


def record(row: Sequence[Any], now: int) -> Record:
    """A row of ``fetch``."""
    (
        job_id, queue, task, state, tenant, key, priority, run_at, enqueued_at, expires_at, finished_at, epoch, attempt,
        lost, max_attempts, timeout, result_ttl, headers, worker, lease_until, cancel, reason, held_until, error,
        result, *stored, group,
    ) = row  # fmt: skip
    held = state == 3 and held_until > now
    return Record(
        id=job_id,
        queue=queue,
        task=task,
        state=STATES[state],
        tenant=tenant,
        key=key,
        priority=priority,
        run_at=run_at,
        enqueued_at=enqueued_at,
        expires_at=expires_at,
        finished_at=finished_at,
        epoch=epoch,
        attempt=attempt,
        lost=lost,
        max_attempts=max_attempts,
        timeout=timeout,
        result_ttl=result_ttl,
        headers=headers,
        worker=worker or "",
        lease_until=lease_until,
        cancel_requested=cancel,
        reason=reason or "",
        cells=cells(stored),
        error=error,
        result=result if held else None,
        held=held,
        group=group,
    )


def hints(rows: Sequence[Sequence[Any]]) -> list[tuple[str, JobId | None]]:
    """The topics that rows of kind 4, 5 and 7 ask to be told."""
    found: list[tuple[str, JobId | None]] = []
    for row in rows:
        if row[0] == 4:
            found.append((f"inbox:{row[2]}", row[1]))
        elif row[0] == 5:
            found.append((f"queue:{row[2]}", None))
        elif row[0] == 7:
            found.append((f"holder:{row[2]}", None))
    return found
