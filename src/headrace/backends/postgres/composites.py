"""Records as PostgreSQL's binary arrays of a composite type, made column by column: a batch is one parameter.

Each table below names the columns of one type of the schema, in order, and how each is read from a record. A test holds
them against the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from struct import Struct, pack
from typing import Any, NamedTuple

from headrace.backends.states import CODES
from headrace.seam.records import Row, Settlement
from headrace.types import SECTIONS

_ARRAY = Struct("!iiiii").pack
_LENGTH = Struct("!i").pack
_NULL = b"\xff\xff\xff\xff"

_BITS = {name: 1 << position for position, name in enumerate(SECTIONS)}
ALL_SECTIONS = sum(_BITS.values())


def mask(names: frozenset[str]) -> int:
    """The sections as bits."""
    return sum(_BITS[name] for name in names if name in _BITS)


class Kind(NamedTuple):
    """A type of PostgreSQL: its name, and a value as it travels in a column of a row."""

    name: str
    pack: Callable[[Any], bytes]


def _sized(name: str, oid: int, *, encoded: bool = False) -> Kind:
    head = Struct("!Ii").pack
    null = pack("!I", oid) + _NULL

    def text(value: str | None) -> bytes:
        if value is None:
            return null
        data = value.encode()
        return head(oid, len(data)) + data

    return Kind(name, text if encoded else lambda data: null if data is None else head(oid, len(data)) + data)


def _number(name: str, oid: int, form: str) -> Kind:
    shape = Struct(f"!Ii{form}")
    size = shape.size - 8
    null = pack("!I", oid) + _NULL
    return Kind(name, lambda value: null if value is None else shape.pack(oid, size, value))


UUID = Kind("uuid", pack("!Ii", 2950, 16).__add__)
TEXT = _sized("text", 25, encoded=True)
BYTEA = _sized("bytea", 17)
BOOLEAN = _number("boolean", 16, "?")
SMALLINT = _number("smallint", 21, "h")
INTEGER = _number("integer", 23, "i")
BIGINT = _number("bigint", 20, "q")


class Column(NamedTuple):
    """One column: its name, its type, and the attribute of a record that it comes from, as it is or derived."""

    name: str
    kind: Kind
    attribute: str
    derive: Callable[[Any], Any] | None = None


class Rows(bytes):
    """An array of a composite type as it travels. The number of the type is the server's to give, and comes last."""


class JobRows(Rows):
    """``job_row[]``."""


class SettlementRows(Rows):
    """``settlement_row[]``."""


def _cell(name: str) -> Column:
    return Column(name, BYTEA, "cells", lambda cells: cells.get(name) if cells else None)


def _same(name: str, kind: Kind) -> Column:
    return Column(name, kind, name)


JOB = (
    _same("id", UUID),
    _same("queue", SMALLINT),
    _same("task", TEXT),
    _same("tenant", TEXT),
    _same("key", TEXT),
    _same("priority", SMALLINT),
    _same("delay", BIGINT),
    _same("run_at", BIGINT),
    _same("expires", BIGINT),
    _same("max_attempts", INTEGER),
    _same("timeout", BIGINT),
    _same("result_ttl", BIGINT),
    _same("headers", BYTEA),
    _same("reply_to", TEXT),
    _same("hold_failed", BOOLEAN),
    Column("group_name", TEXT, "group"),
    *map(_cell, SECTIONS),
)
"""``job_row``. Its queue is a number among the names that are sent along."""
SETTLEMENT = (
    _same("id", UUID),
    _same("epoch", BIGINT),
    _same("holder", TEXT),
    Column("state", SMALLINT, "state", CODES.__getitem__),
    _same("delay", BIGINT),
    _same("run_at", BIGINT),
    _same("failed_attempt", BOOLEAN),
    _same("keep_lost", BOOLEAN),
    _same("unbegun", BOOLEAN),
    _same("queue", TEXT),
    _same("priority", SMALLINT),
    Column("mask", SMALLINT, "cells", lambda cells: mask(frozenset(cells or ()))),
    *map(_cell, SECTIONS),
    _same("error", BYTEA),
    _same("reason", TEXT),
    _same("result", BYTEA),
    _same("result_ttl", BIGINT),
    _same("keep", BOOLEAN),
    Column("spawned", INTEGER, "spawn", len),
)
"""``settlement_row``."""
_ROW = attrgetter(*[column.attribute for column in JOB])
_SETTLEMENT = attrgetter(*[column.attribute for column in SETTLEMENT])
TYPES: Mapping[type[Rows], tuple[str, Sequence[Column]]] = {
    JobRows: ("job_row", JOB),
    SettlementRows: ("settlement_row", SETTLEMENT),
}


def job_rows(rows: Sequence[Row]) -> tuple[list[str], JobRows]:
    """The names of the queues of new jobs, and the jobs."""
    names = {row.queue: None for row in rows}
    numbers = {name: number for number, name in enumerate(names, start=1)}
    return list(names), JobRows(_packed(JOB, _ROW, rows, {"queue": numbers.__getitem__}))


def settlement_rows(batch: Sequence[Settlement]) -> SettlementRows:
    """Settlements."""
    return SettlementRows(_packed(SETTLEMENT, _SETTLEMENT, batch, {}))


def _packed(
    columns: Sequence[Column],
    read: Callable[[Any], tuple[Any, ...]],
    records: Sequence[Any],
    derive: Mapping[str, Callable[[Any], Any]],
) -> bytes:
    """The array. Most batches are all alike in most columns: what is, is packed once."""
    count = len(records)
    if not count:
        return pack("!iii", 0, 0, 0)
    parts: list[Iterable[bytes]] = []
    alike = [_LENGTH(len(columns))]
    for column, given in zip(columns, zip(*map(read, records), strict=True), strict=True):
        if derived := column.derive or derive.get(column.name):
            given = tuple(map(derived, given))
        if given.count(given[0]) == count:
            alike.append(column.kind.pack(given[0]))
        else:
            parts += (repeat(b"".join(alike)), map(column.kind.pack, given))
            alike = []
    body = b"".join(alike)
    bodies = map(b"".join, zip(*parts, repeat(body))) if parts else repeat(body, count)
    array = [_ARRAY(1, 0, 0, count, 1)]
    for body in bodies:
        array += (_LENGTH(len(body)), body)
    return b"".join(array)


def numbered(rows: Rows, oid: int) -> bytes:
    """The array, with the number that the server gave to the type of its rows."""
    return b"".join((memoryview(rows)[:8], pack("!I", oid), memoryview(rows)[12:]))
