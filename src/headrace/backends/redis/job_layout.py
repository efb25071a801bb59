"""How the store keeps a job: one string of bytes for the job as it was enqueued, one for its state. Both are laid out
at the top of ``common.lua``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from struct import Struct
from types import GenericAlias
from typing import Any

import msgspec
from msgspec.structs import fields

from headrace.backends.redis.requests import LARGE, Joined
from headrace.seam.records import CARRIED, CarriedValues, Cells, Row
from headrace.types import SECTIONS

Head = tuple[str | None, str, str, str | None, CarriedValues]
"""Key, task, tenant, group, and the carried options."""
_HEAD = ("key", "task", "tenant", *CARRIED[:3], "group", *CARRIED[3:])
"""They are stored in this order, as an array; new options come last. From the group on, those that are None at its end
are left out."""
_LEAST = 6
_FURTHER = (None,) * len(CARRIED[3:])

JOB = Struct(">QIIhBQI")
"""Enqueued_at, size, qid, priority, flags, expires_at; and the length of the head that follows."""
JOB_OF_CLAIM = Struct(">Q19xI")
"""Of these, enqueued_at and the length."""
STATE = Struct(">BBIQQIIIhBQQQ")
STATE_OF_CLAIM = Struct(">2xI16xI4xIhB8xQQ")
"""Lost, attempt, qid, priority, flags, run_at, epoch."""
_LENGTHS = Struct(">IIIII")
"""The lengths of the headers and of each section."""
_PATCHES = Struct(">IIII")
_LONG = Struct(">I")
NONE, KEPT, LEFT = 2**32 - 1, 2**32 - 2, 2**32 - 3
"""Instead of a length: there is no such section; it is as it was enqueued; it was left out of the answer."""
_NO_OTHERS = (NONE, NONE, NONE)
"""The lengths of the sections after ``parameters``, as most jobs have them."""
KEYED, GROUPED, BEGUN = 1, 2, 4
_ARRAY = 0x90
"""The first byte of a head, plus the number of its items."""

encode = msgspec.msgpack.Encoder().encode
_head_of_row: Callable[[Row], tuple[Any, ...]] = attrgetter(*_HEAD)
_TYPES = [next(field.type for field in fields(Row) if field.name == name) for name in _HEAD]
_DECODERS: dict[int, Callable[[bytes], tuple[Any, ...]]] = {
    _ARRAY + count: msgspec.msgpack.Decoder(GenericAlias(tuple, tuple(_TYPES[:count]))).decode
    for count in range(_LEAST, len(_HEAD) + 1)
}


def large_body(row: Row) -> bytes | Joined:
    """The same as ``body``, in pieces if a cell is large: that is sent as it is."""
    for cell in row.cells.values():
        if len(cell) > LARGE:
            return Joined(_pieces(row))
    return body(row)


def body(row: Row) -> bytes:
    """The part of a job that follows what the server fills in."""
    cells = row.cells
    if row.headers is None and len(cells) == 1 and (parameters := cells.get("parameters")) is not None:
        return _head(row) + _LENGTHS.pack(NONE, len(parameters), NONE, NONE, NONE) + parameters
    return b"".join(_pieces(row))


def _pieces(row: Row) -> list[bytes]:
    parts = [row.headers, *[row.cells.get(name) for name in SECTIONS]]
    lengths = _LENGTHS.pack(*[NONE if part is None else len(part) for part in parts])
    return [_head(row), lengths, *[part for part in parts if part is not None]]


def _head(row: Row) -> bytes:
    named = _head_of_row(row)
    return _encode_shared(*named) if row.key is None and row.group is None else _encode_head(*named)


def _encode_head(*named: str | int | None) -> bytes:
    while len(named) > _LEAST and named[-1] is None:
        named = named[:-1]
    head = encode(named)
    return _LONG.pack(len(head)) + head


_encode_shared = lru_cache(1_024)(_encode_head)


def decode_head(head: bytes) -> Head:
    found = _DECODERS[head[0]](head)
    if len(found) == _LEAST:
        return found[0], found[1], found[2], None, found[3:] + _FURTHER
    return found[0], found[1], found[2], found[6], found[3:6] + found[7:] + _FURTHER[len(found) - 7 :]


_decode_shared = lru_cache(1_024)(decode_head)


def head_of(job: bytes, flags: int, length: int) -> Head:
    """The head of a job."""
    head = job[JOB.size : JOB.size + length]
    return decode_head(head) if flags else _decode_shared(head)


def contents(job: bytes, at: int, patched: bytes | None) -> tuple[bytes | None, Cells, tuple[str, ...]]:
    """Headers, and the cells that were sent: as they were enqueued, or as a run has replaced them; and the sections
    that were left out."""
    lengths = _LENGTHS.unpack_from(job, at)
    at += _LENGTHS.size
    if patched is None and lengths[2:] == _NO_OTHERS and lengths[0] == NONE and lengths[1] < LEFT:
        return None, {"parameters": job[at : at + lengths[1]]}, ()
    headers = None
    if lengths[0] != NONE:
        headers = job[at : at + lengths[0]]
        at += lengths[0]
    found: dict[str, bytes | None] = {}
    _read(found, lengths[1:], job, at)
    if patched is not None:
        _read(found, _PATCHES.unpack_from(patched), patched, _PATCHES.size)
    cells = {name: cell for name, cell in found.items() if cell is not None}
    if len(cells) == len(found):
        return headers, cells, ()
    return headers, cells, tuple([name for name in SECTIONS if name in found and name not in cells])


def _read(found: dict[str, bytes | None], lengths: Iterable[int], packed: bytes, at: int) -> None:
    """Put the cells of these lengths over those that were found; None for one that was left out."""
    for name, length in zip(SECTIONS, lengths, strict=True):
        if length < LEFT:
            found[name] = packed[at : at + length]
            at += length
        elif length == LEFT:
            found[name] = None
        elif length == NONE:
            found.pop(name, None)


class Job:
    """A job as it was enqueued."""

    def __init__(self, job: bytes) -> None:
        self.enqueued_at, self.size, self.qid, self.priority, self.flags, self.expires_at, length = JOB.unpack_from(job)
        head = head_of(job, self.flags, length)
        self.key, self.task, self.tenant, self.group, self.carried = head
        self._job, self._at = job, JOB.size + length

    def contents(self, patched: bytes | None) -> tuple[bytes | None, Cells]:
        """Headers and cells."""
        return contents(self._job, self._at, patched)[:2]


class State:
    """The state of a job, and what has changed since it was enqueued."""

    def __init__(self, packed: bytes) -> None:
        (
            self.state, self.cancel, self.lost, self.instant, self.held_until, self.attempt, self.size, self.qid,
            self.priority, self.flags, self.expires_at, self.run_at, self.epoch,
        ) = STATE.unpack_from(packed)  # fmt: skip
        self.text = packed[STATE.size :]
