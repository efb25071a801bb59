"""Ended jobs as tables, and tables as Parquet. Pyarrow is imported when it is needed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from headrace.core.headers import read_headers
from headrace.errors import ConfigError
from headrace.seam.records import Record
from headrace.types import SECTIONS, Failure

if TYPE_CHECKING:
    import pyarrow as pa

_FAILURES = msgspec.msgpack.Decoder(list[Failure])
_TEXTS = ("queue", "task", "tenant", "key", "group", "reason")
_NUMBERS = ("epoch", "priority", "attempt", "lost", "max_attempts", "timeout", "result_ttl")
_TIMES = ("enqueued_at", "run_at", "expires_at")
_BYTES = ("headers", "error", "result")


def arrow() -> Any:
    """Pyarrow."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"a vault needs pyarrow ({error}); install: pip install 'headrace[vault]'") from error
    return pyarrow


def jobs_table(records: Sequence[Record]) -> pa.Table:
    """Ended jobs, one row each."""
    pa = arrow()
    moment = pa.timestamp("us", tz="UTC")
    columns: dict[str, Any] = {
        "id": pa.array([str(UUID(bytes=one.id)) for one in records], pa.string()),
        "state": pa.array([one.state.value for one in records], pa.string()),
        "ended_at": pa.array([one.finished_at for one in records], moment),
    }
    columns |= {name: pa.array([getattr(one, name) for one in records], pa.string()) for name in _TEXTS}
    columns |= {name: pa.array([getattr(one, name) for one in records], pa.int64()) for name in _NUMBERS}
    columns |= {name: pa.array([getattr(one, name) for one in records], moment) for name in _TIMES}
    failure = pa.struct(
        [
            ("type", pa.string()),
            ("message", pa.string()),
            ("attempt", pa.int64()),
            ("at", moment),
            ("times", pa.int64()),
        ]
    )
    columns["attempts"] = pa.array([_attempts(one) for one in records], pa.list_(failure))
    columns["notes"] = pa.array([_notes(one) for one in records], pa.map_(pa.string(), pa.string()))
    columns |= {name: pa.array([getattr(one, name) for one in records], pa.binary()) for name in _BYTES}
    columns |= {name: pa.array([one.cells.get(name) for one in records], pa.binary()) for name in SECTIONS}
    return pa.table(columns)


def _attempts(record: Record) -> list[Mapping[str, Any]]:
    try:
        found = _FAILURES.decode(record.error) if record.error else []
    except msgspec.MsgspecError:
        return []
    return [
        {"type": one.type, "message": one.message, "attempt": one.attempt, "at": one.at, "times": one.times}
        for one in found
    ]


def _notes(record: Record) -> list[tuple[str, str]]:
    try:
        return list(read_headers(record.headers).items())
    except Exception:  # what cannot be read is in the column of bytes
        return []


def encode(table: pa.Table) -> bytes:
    """A table as Parquet."""
    pa, out = arrow(), io.BytesIO()
    pa.parquet.write_table(table, out, compression="zstd", compression_level=3)
    return out.getvalue()


def decode(body: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """A table from Parquet. Raises ``ValueError`` if it is damaged."""
    pa = arrow()
    return pa.parquet.read_table(io.BytesIO(body), columns=None if columns is None else list(columns))
