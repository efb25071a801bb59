"""Records as the parameters of functions, and rows of functions as records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, TypeVar

from headrace.backends.postgres.arrays import bigints, booleans, byteas, integers, smallints, texts, uuids
from headrace.backends.settled import check_settled
from headrace.backends.states import CODES, STATES
from headrace.errors import InvalidJob
from headrace.seam.policy import STORE
from headrace.seam.records import Cells, JobId, Leased, Reaped, Record, Room, Row, Settlement
from headrace.types import SECTIONS, JobState

T = TypeVar("T")

_BITS = {name: 1 << position for position, name in enumerate(SECTIONS)}
ALL_SECTIONS = sum(_BITS.values())
_SECTIONS = frozenset(SECTIONS)
_ROOM = Struct(">qq")


def mask(names: frozenset[str]) -> int:
    """The sections as bits."""
    return sum(_BITS[name] for name in names if name in _BITS)


def checked(rows: Sequence[Row]) -> None:
    """Refuse what no column is for."""
    for row in rows:
        if not row.cells.keys() <= _SECTIONS:
            raise InvalidJob(f"the sections are {SECTIONS}, but a row came with {tuple(row.cells)}; nothing was stored")


def insert_params(rows: Sequence[Row]) -> tuple[Any, ...]:
    """The arrays of ``insert_v1``, from the names of the queues on."""
    checked(rows)
    names = {row.queue: None for row in rows}
    places = {name: place for place, name in enumerate(names, start=1)}
    return (
        texts(list(names)),
        uuids([row.id for row in rows]),
        smallints([places[row.queue] for row in rows]),
        texts([row.task for row in rows]),
        texts([row.tenant for row in rows]),
        _any(texts, [row.key for row in rows]),
        smallints([row.priority for row in rows]),
        bigints([row.delay for row in rows]),
        _any(bigints, [row.run_at for row in rows]),
        _any(bigints, [row.expires for row in rows]),
        _any(integers, [row.max_attempts for row in rows]),
        _any(bigints, [row.timeout for row in rows]),
        _any(bigints, [row.result_ttl for row in rows]),
        _any(byteas, [row.headers for row in rows]),
        _any(texts, [row.reply_to for row in rows]),
        booleans([row.hold_failed for row in rows]),
        _any(texts, [row.group for row in rows]),
        *(_any(byteas, [row.cells.get(name) for row in rows]) for name in SECTIONS),
    )


def room(queue: str, packed: bytes | None) -> Room | None:
    """Where there was none, of ``insert_v1``; None: not for this role to know."""
    if packed is None:
        return None
    depth, waiting = _ROOM.unpack_from(packed)
    return Room(STORE if len(packed) > _ROOM.size else queue, depth, waiting)


def _any(array: Callable[[list[T]], object], values: list[T]) -> object:
    """The array, or nothing for nothing."""
    return None if values.count(None) == len(values) else array(values)  # type: ignore[arg-type]


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
    """The arrays of ``finish_v1``."""
    check_settled(batch)
    spawn: list[Row] = []
    first: list[int] = []
    for s in batch:
        first.append(len(spawn) + 1)
        spawn += s.spawn
    cells = [s.cells or {} for s in batch]
    return (
        uuids([s.id for s in batch]),
        bigints([s.epoch for s in batch]),
        texts([s.holder for s in batch]),
        smallints([CODES[s.state] for s in batch]),
        bigints([s.delay for s in batch]),
        booleans([s.failed_attempt for s in batch]),
        booleans([s.keep_lost for s in batch]),
        booleans([s.unbegun for s in batch]),
        texts([s.queue for s in batch]),
        smallints([s.priority for s in batch]),
        smallints([mask(frozenset(given)) for given in cells]),
        *(byteas([given.get(name) for given in cells]) for name in SECTIONS),
        byteas([s.error for s in batch]),
        texts([s.reason for s in batch]),
        byteas([s.result for s in batch]),
        bigints([s.result_ttl for s in batch]),
        booleans([s.keep for s in batch]),
        integers(first),
        integers([len(s.spawn) for s in batch]),
        *insert_params(spawn),
        bigints([s.run_at for s in batch]),
    )


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
