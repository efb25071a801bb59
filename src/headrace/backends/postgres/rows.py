"""Records as the parameters of functions, and rows of functions as records."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

from headrace.backends.postgres.arrays import bigints, byteas, texts, uuids
from headrace.backends.postgres.composites import NOTICE, job_row, job_rows, read_row, rows_of
from headrace.backends.settlement_checks import check_settled
from headrace.backends.states import STATES
from headrace.errors import InvalidJob
from headrace.seam.policy import STORE
from headrace.seam.records import Altered, Cells, JobId, Leased, Reaped, Record, Room, Row, Settlement, Stamp
from headrace.types import SECTIONS, JobState

_SECTIONS = frozenset(SECTIONS)
_PARAMETERS = SECTIONS[0]
_NO_OTHERS = [None] * (len(SECTIONS) - 1)
_COMPLETED = JobState.COMPLETED
_ROOM = Struct(">qq")
_AT = Struct(">q").pack
_MUCH = 1024 * 1024
"""Bytes from which a row is given more time on its way."""
_END = 7 + Leased.__struct_fields__.index("left") - Leased.__struct_fields__.index("epoch")
"""Where the columns of a leased job end in an answer: seven, with one for each cell, then its fields from the epoch on.
Its place in the answer follows, then the notice, then the rest."""
_PLACE = itemgetter(_END)
_CELLS = Record.__struct_fields__.index("cells")
_CLAIM_ORDER = itemgetter(10, 11, 0)


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


def is_alone(row: Row) -> bool:
    """Whether ``insert_one_v1`` may take the row, as far as the row tells."""
    return row.key is None and row.group is None and row.cells.keys() <= _SECTIONS and weight(row) < _MUCH


def one_params(row: Row, at: Stamp, hint: tuple[bytes, bytes] | None) -> tuple[bytes | None, ...]:
    """The parameters of ``insert_one_v1``, as they travel."""
    return None if at is None else _AT(at), row.queue.encode(), job_row(row), *(hint or (None, None))


def room(queue: str, packed: bytes | None) -> Room | None:
    """The room of a FULL row of ``insert_v1``; None: not for this role to know."""
    if packed is None:
        return None
    depth, waiting = _ROOM.unpack_from(packed)
    return Room(STORE if len(packed) > _ROOM.size else queue, depth, waiting)


def weight(row: Row | Leased) -> int:
    """Bytes that a job takes up, as retention counts them."""
    names = len(row.task) + len(row.tenant) + len(row.key or "") + len(row.group or "") + len(row.headers or b"")
    return 200 + names + sum(map(len, row.cells.values()))


def are_plain(batch: Sequence[Settlement]) -> bool:
    """Whether nothing but the completion of jobs of one holder is to be recorded, of each once."""
    if not batch:
        return False
    holder, keep = batch[0].holder, batch[0].keep
    plain = {
        s.id
        for s in batch
        if s.state is _COMPLETED
        and s.holder == holder
        and s.keep is keep
        and not (s.reason or s.failed_attempt or s.keep_lost or s.cells or s.spawn)
        and s.queue is None is s.priority
        and s.error is None
    }
    return len(plain) == len(batch)


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
    return rows_of("settlement_row", batch), *insert_params([row for s in batch for row in s.spawn])


class Notice(NamedTuple):
    """What an answer tells besides leased jobs: one of these."""

    told: Sequence[Any] | None
    settled: Sequence[Any] | None
    reaped: Sequence[Any] | None
    altered: Sequence[Any] | None
    planned: Sequence[Any] | None


class Rest(NamedTuple):
    """What a claim tells after its jobs."""

    walked: int
    passed_over: int
    next_in: int | None
    due: int | None
    bytes: int | None
    unsealed: bool | None


def notices(rows: Sequence[Sequence[Any]]) -> list[Notice]:
    """The notices of an answer."""
    return [Notice(*read_row(NOTICE, row[_END + 1])) for row in rows if row[_END + 1] is not None]


def rest(rows: Sequence[Sequence[Any]]) -> Rest:
    """The rest of the answer to a claim."""
    return Rest(*rows[-1][_END + 2 :])


def settled(batch: Sequence[Settlement], notices: Sequence[Notice]) -> list[JobState | None]:
    """What became of each settlement."""
    states: list[JobState | None] = [s.state for s in batch]
    for notice in notices:
        if notice.settled:
            number, state = notice.settled
            states[number - 1] = None if state is None else STATES[state]
    return states


def completed(
    batch: Sequence[Settlement], ordered: list[Settlement], notices: Sequence[Notice]
) -> list[JobState | None]:
    """The same in the order of the batch. It travels by id, so that no two batches wait for each other."""
    states = settled(ordered, notices)
    if ordered == batch:
        return states
    found = {s.id: state for s, state in zip(ordered, states, strict=True)}
    return [found[s.id] for s in batch]


def leased(rows: Sequence[Sequence[Any]], want: frozenset[str] | None) -> list[Leased]:
    """The jobs of an answer, in order: by their places, or else by (priority, run_at, id)."""
    found = [row for row in rows if row[0] is not None]
    if found:
        found.sort(key=_CLAIM_ORDER if found[0][_END] is None else _PLACE)
    if want is None or want >= _SECTIONS:
        return [Leased(row[0], row[1], row[2], cells(row[3:7]), *row[7:_END]) for row in found]
    return [_leased_in_part(row, want) for row in found]


def _leased_in_part(row: Sequence[Any], want: frozenset[str]) -> Leased:
    there = cells(row[3:7])
    brought = {name: cell for name, cell in there.items() if name in want}
    left = tuple([name for name in there if name not in want])
    return Leased(row[0], row[1], row[2], brought, *[*row[7:_END], left])


def reaped(notices: Sequence[Notice]) -> list[Reaped]:
    """The jobs that were taken back, or have expired."""
    return [
        Reaped(job_id, queue, task, STATES[state], lost, reason, key)
        for notice in notices
        if notice.reaped
        for job_id, queue, task, state, lost, reason, key in (notice.reaped,)
    ]


def altered(notices: Sequence[Notice]) -> list[Altered]:
    """The jobs that were looked at to be changed."""
    return [
        Altered(job_id, STATES[before], None if after is None else STATES[after], changed, queue, key)
        for notice in notices
        if notice.altered
        for job_id, before, after, changed, queue, key in (notice.altered,)
    ]


def cells(stored: Sequence[bytes | None]) -> Cells:
    """The cells that are there, by section. Most jobs have parameters alone."""
    parameters, *others = stored
    if others == _NO_OTHERS:
        return {} if parameters is None else {_PARAMETERS: parameters}
    return {name: cell for name, cell in zip(SECTIONS, stored, strict=True) if cell is not None}


def record(row: Sequence[Any]) -> Record:
    """A row of ``fetch``: a number, then the columns of a record, in order, with one column for each cell."""
    values = list(row[1:])
    values[3] = STATES[values[3]]
    values[_CELLS : _CELLS + 4] = [cells(values[_CELLS : _CELLS + 4])]
    return Record(*values)


def hints(notices: Sequence[Notice]) -> list[tuple[str, JobId | None]]:
    """The topics that are to be told, and of which job."""
    return [(topic, job_id) for notice in notices if notice.told for topic, job_id in (notice.told,)]
