"""Python lists as PostgreSQL's binary arrays, made in one go: a batch travels as a few of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct, pack

from psycopg import AsyncConnection, Connection
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format

from headrace.backends.postgres.composites import TYPES, Rows, numbered
from headrace.seam.records import JobId

_HEADER = Struct("!iiiii")
_LENGTH = Struct("!i")
_NULL = b"\xff\xff\xff\xff"


class _Array(bytes):
    """An array as it travels."""


class Uuids(_Array):
    """``uuid[]``."""


class Smallints(_Array):
    """``smallint[]``."""


class Integers(_Array):
    """``integer[]``."""


class Bigints(_Array):
    """``bigint[]``."""


class Texts(_Array):
    """``text[]``."""


class Byteas(_Array):
    """``bytea[]``."""


class Booleans(_Array):
    """``boolean[]``."""


def _header(oid: int, count: int) -> bytes:
    return _HEADER.pack(1, 1, oid, count, 1) if count else pack("!iii", 0, 0, oid)


def uuids(ids: Sequence[JobId]) -> Uuids:
    """Ids, which are 16 bytes each."""
    size = b"\0\0\0\x10"
    return Uuids(_header(2950, len(ids)) + (size + size.join(ids) if ids else b""))


def smallints(values: Sequence[int | None]) -> Smallints:
    """Small numbers."""
    return Smallints(_header(21, len(values)) + _numbers(values, Struct("!ih"), 2))


def integers(values: Sequence[int | None]) -> Integers:
    """Numbers."""
    return Integers(_header(23, len(values)) + _numbers(values, Struct("!ii"), 4))


def bigints(values: Sequence[int | None]) -> Bigints:
    """Large numbers."""
    return Bigints(_header(20, len(values)) + _numbers(values, Struct("!iq"), 8))


def booleans(values: Sequence[bool]) -> Booleans:
    """Truths."""
    return Booleans(
        _header(16, len(values)) + b"".join([b"\0\0\0\1\1" if value else b"\0\0\0\1\0" for value in values])
    )


def texts(values: Sequence[str | None]) -> Texts:
    """Texts."""
    return Texts(_header(25, len(values)) + _blobs([None if value is None else value.encode() for value in values]))


def byteas(values: Sequence[bytes | None]) -> Byteas:
    """Bytes."""
    return Byteas(_header(17, len(values)) + _blobs(values))


def _numbers(values: Sequence[int | None], shape: Struct, size: int) -> bytes:
    first = values[0] if values else None
    if values.count(first) == len(values):  # most batches are all alike in most columns
        return (_NULL if first is None else shape.pack(size, first)) * len(values)
    return b"".join([_NULL if value is None else shape.pack(size, value) for value in values])


def _blobs(values: Sequence[bytes | None]) -> bytes:
    first = values[0] if values else None
    if first is None and values.count(None) == len(values):
        return _NULL * len(values)
    length = _LENGTH.pack
    return b"".join([_NULL if value is None else length(len(value)) + value for value in values])


class _RawId(Loader):
    """Ids stay the 16 bytes that they are."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


_OIDS: dict[type[_Array], int] = {
    Uuids: 2951,
    Smallints: 1005,
    Integers: 1007,
    Bigints: 1016,
    Texts: 1009,
    Byteas: 1001,
    Booleans: 1000,
}


def _dumper(array: type[_Array], array_oid: int) -> type[Dumper]:
    class AsItIs(Dumper):
        format = Format.BINARY
        oid = array_oid

        def dump(self, obj: _Array) -> Buffer:
            return obj

    AsItIs.__name__ = f"{array.__name__}Dumper"
    return AsItIs


_DUMPERS = {array: _dumper(array, oid) for array, oid in _OIDS.items()}


def _rows_dumper(type_name: str, types: Mapping[str, int]) -> type[Dumper]:
    class Numbered(Dumper):
        format = Format.BINARY

        def dump(self, obj: Rows) -> Buffer:
            return numbered(obj, types[type_name])

    return Numbered


def register(connection: Connection[object] | AsyncConnection[object], types: Mapping[str, int]) -> None:
    """Teach a connection these types; ``types`` are the server's numbers of the composite ones, by name."""
    for array, dumper in _DUMPERS.items():
        connection.adapters.register_dumper(array, dumper)
    for rows, (name, _) in TYPES.items():
        connection.adapters.register_dumper(rows, _rows_dumper(name, types))
    connection.adapters.register_loader("uuid", _RawId)
