"""Records as PostgreSQL's binary arrays of a composite type, made column by column: a batch is one parameter; and rows
of composite types as they come in answers.

Each table below names the columns of one type of the schema, in order, and how each is read from a record. A test holds
them against the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from operator import attrgetter
from struct import Struct, pack, pack_into
from typing import Any, NamedTuple

import msgspec

from headrace.backends.states import CODES
from headrace.seam.records import CARRIED, CARRIED_TEXTS, Row
from headrace.seam.references import RESULT
from headrace.seam.ticks import TickOutcome
from headrace.types import SECTIONS

_ARRAY = Struct("!iiiii").pack
_LENGTH = Struct("!i").pack
_SIZE = Struct("!i").unpack_from
_NULL = b"\xff\xff\xff\xff"
_NUMBER_AT = 8
_LARGE = 1024 * 1024
COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_END = b"\xff\xff"

Pack = Callable[[Any], bytes]
Derive = Mapping[str, Callable[[Any], Any]]
"""By column, its value from the attribute that it comes from, where only the caller knows."""

_BITS = {name: 1 << position for position, name in enumerate(SECTIONS)}
ALL_SECTIONS = sum(_BITS.values())


def mask(names: frozenset[str]) -> int:
    """The sections as bits."""
    return sum(_BITS[name] for name in names if name in _BITS)


class Kind(NamedTuple):
    """A type of PostgreSQL: its name, a value as it travels in a column of a row, the same for ``COPY``, which leaves
    out the number of the type, and the value of what came in a column."""

    name: str
    pack: Pack
    bare: Pack
    read: Callable[[bytes], Any] = bytes


def _sized(name: str, oid: int, *, encoded: bool = False) -> Kind:
    head = Struct("!Ii").pack
    null = pack("!I", oid) + _NULL

    def text(value: str | None) -> bytes:
        if value is None:
            return null
        data = value.encode()
        return head(oid, len(data)) + data

    def bare(data: bytes | None) -> bytes:
        return _NULL if data is None else _LENGTH(len(data)) + data

    if encoded:
        return Kind(name, text, lambda value: bare(None if value is None else value.encode()), bytes.decode)
    return Kind(name, lambda data: null if data is None else head(oid, len(data)) + data, bare)


def _number(name: str, oid: int, form: str) -> Kind:
    shape, bare = Struct(f"!Ii{form}"), Struct(f"!i{form}")
    size = shape.size - 8
    null = pack("!I", oid) + _NULL
    read = Struct(f"!{form}").unpack
    return Kind(
        name,
        lambda value: null if value is None else shape.pack(oid, size, value),
        lambda value: _NULL if value is None else bare.pack(size, value),
        lambda data: read(data)[0],
    )


UUID = Kind("uuid", pack("!Ii", 2950, 16).__add__, pack("!i", 16).__add__)
MAYBE_UUID = _sized("uuid", 2950)
TEXT = _sized("text", 25, encoded=True)
BYTEA = _sized("bytea", 17)
BOOLEAN = _number("boolean", 16, "?")
SMALLINT = _number("smallint", 21, "h")
INTEGER = _number("integer", 23, "i")
BIGINT = _number("bigint", 20, "q")
_KINDS = {kind.name: kind for kind in (UUID, TEXT, BYTEA, BOOLEAN, SMALLINT, INTEGER, BIGINT)}


Columns = Mapping[str, Kind]
"""The columns of a type that comes in answers, in order."""


def read_row(columns: Columns, packed: bytes) -> list[Any]:
    """The columns of a row."""
    values: list[Any] = []
    start = 12
    for kind in columns.values():
        [length] = _SIZE(packed, start - 4)
        if length < 0:
            values.append(None)
            length = 0
        else:
            values.append(kind.read(packed[start : start + length]))
        start += length + 8
    return values


def _nested(name: str, columns: Columns) -> Kind:
    return Kind(name, bytes, bytes, lambda packed: read_row(columns, packed))


NOTICES: Mapping[str, Columns] = {
    "told": {"topic": TEXT, "id": UUID},
    "settled": {"number": INTEGER, "state": SMALLINT},
    "reaped": {
        "id": UUID, "queue": TEXT, "task": TEXT, "state": SMALLINT, "lost": INTEGER, "reason": TEXT, "key": TEXT,
    },
    "altered": {"id": UUID, "before": SMALLINT, "after": SMALLINT, "changed": BOOLEAN, "queue": TEXT, "key": TEXT},
    "planned": {"plan": INTEGER, "tick": INTEGER, "outcome": SMALLINT},
}  # fmt: skip
"""``told_row`` and the others, each of which is a column of ``notice``."""
NOTICE: Columns = {name: _nested(f"{name}_row", columns) for name, columns in NOTICES.items()}


class Column(NamedTuple):
    """One column: its name, its type, and the attribute of a record that it comes from, as it is or derived."""

    name: str
    kind: Kind
    attribute: str
    derive: Callable[[Any], Any] | None = None


class Rows(bytearray):
    """An array of a composite type as it travels. The number of the type is the server's to give, and is filled in."""

    type: str


def _cell(name: str) -> Column:
    return Column(name, BYTEA, "cells", lambda cells: cells.get(name) if cells else None)


def _seen(name: str) -> Column:
    return Column(f"seen_{name}", BYTEA, "seen", lambda cells: cells.get(name))


def _same(columns: str, *, of: str = "") -> list[Column]:
    """Columns as SQL has them, each from the attribute of its name."""
    return [Column(name, _KINDS[kind], of + name) for name, kind in map(str.split, columns.split(","))]


_CARRIED = {name: TEXT if name in CARRIED_TEXTS else BIGINT for name in CARRIED} | {"max_attempts": INTEGER}
"""The types of carried options."""
JOB = (
    *_same("id uuid, queue smallint, task text, tenant text, key text, priority smallint"),
    *_same("delay bigint, run_at bigint, expires bigint"),
    *[Column(name, kind, name) for name, kind in _CARRIED.items()],
    *_same("headers bytea, reply_to text, hold_failed boolean, key_until smallint, replaces smallint"),
    Column("group_name", TEXT, "group"),
    *map(_cell, SECTIONS),
)
"""``job_row``. Its queue is a number among the names that are sent along."""
_SETTLEMENT = (
    *_same("id uuid, epoch bigint, holder text"),
    Column("state", SMALLINT, "state", CODES.__getitem__),
    *_same("delay bigint, run_at bigint, failed_attempt boolean, keep_lost boolean, unbegun boolean"),
    *_same("queue text, priority smallint"),
    Column("mask", SMALLINT, "cells", lambda cells: mask(frozenset(cells or ()))),
    *map(_cell, SECTIONS),
    *_same("error bytea, reason text, result bytea, result_ttl bigint, keep boolean"),
    Column("spawned", INTEGER, "spawn", len),
)
_SWAP = (*_same("id uuid"), *map(_seen, (*SECTIONS, RESULT)), *map(_cell, (*SECTIONS, RESULT)))
_SCHEDULE = (
    *_same("name text"),
    Column("uid", MAYBE_UUID, "uid", lambda uid: uid or None),
    *_same("queue text, definition bytea, tenant text, plan_priority smallint, bucket smallint, enabled boolean"),
    *_same("slot bigint, look_at bigint, runs bigint, last_slot bigint"),
    Column("last_job", MAYBE_UUID, "last_job"),
    *_same("version bigint, created_at bigint, updated_at bigint"),
)
OUTCOMES = (TickOutcome.FIRED, TickOutcome.SKIPPED, TickOutcome.MISSED)
_TICK = (
    *_same("slot bigint, run_at bigint"),
    Column("outcome", SMALLINT, "outcome", OUTCOMES.index),
    *_same("planned_at bigint, count integer"),
    Column("job", MAYBE_UUID, "job"),
    *_same("state text, waited bigint, ran bigint"),
)
_PARCEL = (
    *_same("id uuid, queue text, task text", of="job."),
    Column("state", SMALLINT, "job.state", CODES.__getitem__),
    *_same("tenant text, key text, priority smallint, run_at bigint, enqueued_at bigint, expires_at bigint", of="job."),
    *_same("finished_at bigint, epoch bigint, attempt integer, lost integer", of="job."),
    *[Column(name, kind, f"job.{name}") for name, kind in _CARRIED.items()],
    *_same("headers bytea, reason text", of="job."),
    *[column._replace(attribute="job.cells") for column in map(_cell, SECTIONS)],
    *_same("error bytea, result bytea", of="job."),
    Column("group_name", TEXT, "job.group"),
    *_same("held_until bigint, begun boolean"),
)


_Packs = Sequence[tuple[Column, Pack]]
"""How records become rows: per column, what packs its values."""


TYPES = {
    "job_row": JOB,
    "settlement_row": _SETTLEMENT,
    "swap_row": _SWAP,
    "schedule_row": _SCHEDULE,
    "parcel_row": _PARCEL,
    "tick_row": _TICK,
}
"""What is sent, by the type of the schema."""
_PACKS: Mapping[str, _Packs] = {name: [(one, one.kind.pack) for one in columns] for name, columns in TYPES.items()}


def job_rows(rows: Sequence[Row]) -> tuple[list[str], Rows]:
    """The names of the queues of new jobs, and the jobs."""
    names = {row.queue: None for row in rows}
    numbers = {name: number for number, name in enumerate(names, start=1)}
    return list(names), rows_of("job_row", rows, {"queue": numbers.__getitem__})


_ALONE = _LENGTH(len(JOB)) + UUID.pack(b"")
_FIRST = SMALLINT.pack(1)
_BETWEEN = Struct("!IihIiq").pack
"""Priority and delay."""
_SELDOM = attrgetter("run_at", "expires", *CARRIED, "headers", "reply_to")
_SELDOM_PACKED = (BIGINT.pack, BIGINT.pack, *[kind.pack for kind in _CARRIED.values()], BYTEA.pack, TEXT.pack)
_USUAL = (None,) * len(_SELDOM_PACKED)
_NO_CELL = BYTEA.pack(None)
_NO_NAME = TEXT.pack(None)
_USUALLY = b"".join(packed(None) for packed in _SELDOM_PACKED)
_PLAIN = BOOLEAN.pack(False) + SMALLINT.pack(0) + SMALLINT.pack(0) + _NO_NAME
"""``hold_failed``, ``key_until``, ``replaces`` and ``group_name`` mean nothing to a row without a key and a group."""


def job_row(row: Row) -> bytes:
    """One new job that has neither a key nor a group, by itself: ``job_row`` as it travels. Its queue is the first."""
    given, cells = _SELDOM(row), row.cells
    seldom = _USUALLY
    if given != _USUAL:
        seldom = b"".join([packed(value) for packed, value in zip(_SELDOM_PACKED, given, strict=True)])
    return b"".join(
        [
            _ALONE, row.id, _FIRST, TEXT.pack(row.task), TEXT.pack(row.tenant), _NO_NAME,
            _BETWEEN(21, 2, row.priority, 20, 8, row.delay),
            seldom, _PLAIN, *[BYTEA.pack(cells[name]) if name in cells else _NO_CELL for name in SECTIONS],
        ]
    )  # fmt: skip


def rows_of(name: str, records: Sequence[Any], derive: Derive | None = None) -> Rows:
    """Records as an array of this type. It is made in place: a large cell in it is copied no more often than it must
    be."""
    packs = _PACKS[name]
    array = Rows(_ARRAY(1, 0, 0, len(records), 1) if records else pack("!iii", 0, 0, 0))
    array.type = name
    if records:
        for body in _bodies(_LENGTH(len(packs)), packs, records, derive or {}):
            array.extend(_LENGTH(len(body)))
            array.extend(body)
    return array


def copied(columns: Sequence[Column], rows: Sequence[Row], derive: Derive) -> Iterator[bytes]:
    """The rows as ``COPY`` takes them, in parts. Large cells are parts of their own, and not copied."""
    head, packs = pack("!h", len(columns)), [(column, column.kind.bare) for column in columns]
    yield COPY_HEADER
    for large, some in groupby(rows, _is_large):
        if large:
            for row in some:
                yield head
                yield from _in_parts(packs, row, derive)
        else:
            yield b"".join(_bodies(head, packs, list(some), derive))
    yield COPY_END


def _is_large(row: Row) -> bool:
    return any(len(cell) > _LARGE for cell in row.cells.values())


def _in_parts(packs: _Packs, row: Row, derive: Derive) -> Iterator[bytes]:
    """One record, column by column."""
    for column, packed in packs:
        value = getattr(row, column.attribute)
        if derived := column.derive or derive.get(column.name):
            value = derived(value)
        if isinstance(value, bytes) and len(value) > _LARGE:
            yield _LENGTH(len(value))
            yield value
        else:
            yield packed(value)


def _bodies(head: bytes, packs: _Packs, records: Sequence[msgspec.Struct], derive: Derive) -> Iterable[bytes]:
    """Each record as a row. Most batches are all alike in most columns: what is, is packed once."""
    count = len(records)
    parts: list[Iterable[bytes]] = []
    alike = [head]
    values = _by_attribute(records)
    for column, packed in packs:
        given = values[column.attribute]
        if derived := column.derive or derive.get(column.name):
            given = tuple(map(derived, given))
        if given.count(given[0]) == count:
            alike.append(packed(given[0]))
        else:
            parts += (repeat(b"".join(alike)), map(packed, given))
            alike = []
    body = b"".join(alike)
    return map(b"".join, zip(*parts, repeat(body))) if parts else repeat(body, count)


def _by_attribute(records: Sequence[msgspec.Struct], of: str = "") -> dict[str, tuple[Any, ...]]:
    """The values of each attribute, also of those of the job in a parcel."""
    names = [of + name for name in records[0].__struct_fields__]
    found = dict(zip(names, zip(*map(msgspec.structs.astuple, records), strict=True), strict=True))
    jobs = found.get("job")
    return found | _by_attribute(jobs, "job.") if jobs and isinstance(jobs[0], msgspec.Struct) else found


def numbered(rows: Rows, oid: int) -> Rows:
    """The array, with the number that the server gave to the type of its rows."""
    pack_into("!I", rows, _NUMBER_AT, oid)
    return rows
