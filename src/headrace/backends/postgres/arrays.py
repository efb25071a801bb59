"""Python lists as PostgreSQL's binary arrays, made in one go: a batch travels as a few of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct, pack
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection, adapters
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format

from headrace.backends.postgres import composites as c
from headrace.seam.records import JobId

_HEADER = Struct("!iiiii").pack


class Array(bytes):
    """An array as it travels. Those of each type are of a class of their own, by which the driver knows the type."""


T = TypeVar("T")
MakeArray = Callable[[Sequence[T]], Array]

_DUMPERS: dict[type[Array], type[Dumper]] = {}


def _array(kind: c.Kind, join: Callable[[Sequence[Any]], bytes] | None = None) -> MakeArray[Any]:
    """``join`` makes the elements of many values, where that is faster than one by one."""
    type_ = adapters.types[kind.name]
    oid, bare = type_.oid, kind.bare

    class Typed(Array):
        """Of this type."""

    _DUMPERS[Typed] = _dumper(type_.array_oid)
    empty = Typed(pack("!iii", 0, 0, oid))

    def packed(values: Sequence[Any]) -> Array:
        count = len(values)
        if not count:
            return empty
        if values.count(values[0]) == count:  # most batches are all alike in most columns
            return Typed(_HEADER(1, 1, oid, count, 1) + bare(values[0]) * count)
        return Typed(_HEADER(1, 1, oid, count, 1) + (join(values) if join else b"".join(map(bare, values))))

    return packed


def _dumper(array_oid: int) -> type[Dumper]:
    class AsItIs(Dumper):
        format = Format.BINARY
        oid = array_oid

        def dump(self, obj: Array) -> Buffer:
            return obj

    return AsItIs


_SIXTEEN = b"\0\0\0\x10"
uuids: MakeArray[JobId] = _array(c.UUID, lambda ids: _SIXTEEN + _SIXTEEN.join(ids))
smallints: MakeArray[int | None] = _array(c.SMALLINT)
integers: MakeArray[int | None] = _array(c.INTEGER)
bigints: MakeArray[int | None] = _array(c.BIGINT)
texts: MakeArray[str | None] = _array(c.TEXT)
byteas: MakeArray[bytes | None] = _array(c.BYTEA)
booleans: MakeArray[bool] = _array(c.BOOLEAN)


class _RawId(Loader):
    """Ids stay the 16 bytes that they are."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def _rows_dumper(types: Mapping[str, int]) -> type[Dumper]:
    class Numbered(Dumper):
        format = Format.BINARY

        def dump(self, obj: c.Rows) -> Buffer:
            return c.numbered(obj, types[obj.type])

    return Numbered


def register(connection: Connection[object] | AsyncConnection[object], types: Mapping[str, int]) -> None:
    """Teach a connection these types; ``types`` are the server's numbers of the composite ones, by name."""
    for array, dumper in _DUMPERS.items():
        connection.adapters.register_dumper(array, dumper)
    connection.adapters.register_dumper(c.Rows, _rows_dumper(types))
    connection.adapters.register_loader("uuid", _RawId)
