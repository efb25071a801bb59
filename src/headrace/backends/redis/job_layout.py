"""How the store keeps a job: one string of bytes for the job as it was enqueued, one for its state. Both are laid out
at the top of ``common.lua``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

import msgspec

from headrace.seam.records import Cells, Row
from headrace.types import SECTIONS

_Plain = tuple[str | None, str, str, int | None, int | None, int | None]
Head = tuple[str | None, str, str, int | None, int | None, int | None, str | None]
"""Key, task, tenant, max_attempts, timeout, result_ttl, group; the group is stored only if there is one."""

JOB = Struct(">QIIhBQI")
"""Enqueued_at, size, qid, priority, flags, expires_at; and the length of the head that follows."""
STATE = Struct(">BBIQQIIIhBQQQ")
_LENGTHS = Struct(">IIIII")
"""The lengths of the headers and of each section."""
_PATCHES = Struct(">IIII")
_LONG = Struct(">I")
NONE, KEPT = 2**32 - 1, 2**32 - 2
KEYED, GROUPED, BEGUN = 1, 2, 4
_SEVEN = 0x97
"""The first byte of a head that has a group."""

encode = msgspec.msgpack.Encoder().encode
_decode_plain: Callable[[bytes], _Plain] = msgspec.msgpack.Decoder(_Plain).decode
_decode_grouped: Callable[[bytes], Head] = msgspec.msgpack.Decoder(Head).decode


def body(row: Row) -> bytes:
    """The part of a job that follows what the server fills in."""
    if row.group is not None:
        named = (row.key, row.task, row.tenant, row.max_attempts, row.timeout, row.result_ttl, row.group)
        head = _framed(encode(named))
    elif row.key is None:
        head = _encode_shared(None, row.task, row.tenant, row.max_attempts, row.timeout, row.result_ttl)
    else:
        head = _framed(encode((row.key, row.task, row.tenant, row.max_attempts, row.timeout, row.result_ttl)))
    cells = row.cells
    parts = [row.headers, *[cells.get(name) for name in SECTIONS]]
    lengths = _LENGTHS.pack(*[NONE if part is None else len(part) for part in parts])
    return b"".join([head, lengths, *[part for part in parts if part is not None]])


@lru_cache(1_024)
def _encode_shared(*head: str | int | None) -> bytes:
    return _framed(encode(head))


def decode_head(head: bytes) -> Head:
    return _decode_grouped(head) if head[0] == _SEVEN else (*_decode_plain(head), None)


@lru_cache(1_024)
def _decode_shared(head: bytes) -> Head:
    return decode_head(head)


def _framed(head: bytes) -> bytes:
    return _LONG.pack(len(head)) + head


def head_of(job: bytes, flags: int, length: int) -> Head:
    """The head of a job."""
    head = job[JOB.size : JOB.size + length]
    return decode_head(head) if flags else _decode_shared(head)


def contents(job: bytes, at: int, patched: bytes | None, want: frozenset[str] | None) -> tuple[bytes | None, Cells]:
    """Headers, and those cells that are wanted: as they were enqueued, or as a run has replaced them."""
    lengths = _LENGTHS.unpack_from(job, at)
    at += _LENGTHS.size
    headers = None
    if lengths[0] != NONE:
        headers = job[at : at + lengths[0]]
        at += lengths[0]
    found: Cells = {}
    for name, length in zip(SECTIONS, lengths[1:], strict=True):
        if length != NONE:
            if want is None or name in want:
                found[name] = job[at : at + length]
            at += length
    if patched is not None:
        at = _PATCHES.size
        for name, length in zip(SECTIONS, _PATCHES.unpack_from(patched), strict=True):
            if length == KEPT:
                continue
            found.pop(name, None)
            if length != NONE:
                if want is None or name in want:
                    found[name] = patched[at : at + length]
                at += length
    return headers, found


class Job:
    """A job as it was enqueued."""

    def __init__(self, job: bytes) -> None:
        self.enqueued_at, self.size, self.qid, self.priority, self.flags, self.expires_at, length = JOB.unpack_from(job)
        head = head_of(job, self.flags, length)
        self.key, self.task, self.tenant, self.max_attempts, self.timeout, self.result_ttl, self.group = head
        self._job, self._at = job, JOB.size + length

    def contents(self, patched: bytes | None, want: frozenset[str] | None) -> tuple[bytes | None, Cells]:
        """Headers and cells."""
        return contents(self._job, self._at, patched, want)


class State:
    """The state of a job, and what has changed since it was enqueued."""

    def __init__(self, packed: bytes) -> None:
        (
            self.state, self.cancel, self.lost, self.instant, self.held_until, self.attempt, self.size, self.qid,
            self.priority, self.flags, self.expires_at, self.run_at, self.epoch,
        ) = STATE.unpack_from(packed)  # fmt: skip
        self.text = packed[STATE.size :]
