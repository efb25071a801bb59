"""A reference: a cell that says where in the object store another cell lies.

It has the envelope of every cell, and stores keep it as one (:mod:`headrace.seam.references`). Its body has 32 bytes::

    hour (4) · name (12) · offset (4) · length (4) · digest (8)

Hour and name make the key of a segment. There is no text and no URL in a reference, so a forged one cannot lead
anywhere but to another segment.
"""

from __future__ import annotations

import struct
from datetime import date
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from headrace.errors import CodecError
from headrace.seam.references import HOUR_AT, KIND, SIZE, is_reference
from headrace.text import shown

FOLDER = "segments"
NAME_SIZE = 12
_DIGEST_SIZE = 8
_HEAD = struct.Struct(">BI")
_BODY = struct.Struct(f">I{NAME_SIZE}sII{_DIGEST_SIZE}s")
assert (_HEAD.size, _HEAD.size + _BODY.size) == (HOUR_AT, SIZE)
_LENGTH_AT = HOUR_AT + 4 + NAME_SIZE + 4
_FIRST_DAY = date(1970, 1, 1).toordinal()
_HOURS = 24 * (date.max.toordinal() - _FIRST_DAY + 1)


class Reference(NamedTuple):
    """Where a cell lies in the object store, and how to tell that it is the one that was stored there."""

    hour: int
    """Since 1970: the folder of the segment. Nothing in it is due later."""
    name: bytes
    offset: int
    length: int
    digest: bytes

    @property
    def key(self) -> str:
        """The key of the segment.

        >>> Reference(500_000, bytes(12), 0, 5, bytes(8)).key
        'segments/2027-01-15/08/000000000000000000000000'
        """
        return segment_key(self.hour, self.name)

    @property
    def day(self) -> date:
        """The day that its hour belongs to."""
        return day_of(self.hour)

    @property
    def cell(self) -> bytes:
        """The reference as a cell of 37 bytes."""
        body = _BODY.pack(*self)
        return _HEAD.pack(KIND, crc32(body)) + body


def read_reference(cell: bytes, what: str) -> Reference:
    """The reference in a cell."""
    if not is_reference(cell):
        raise CodecError(f"{what}: expected a reference of {SIZE} bytes, got {shown(cell)} of {len(cell)} bytes")
    body = cell[_HEAD.size :]
    if _HEAD.unpack_from(cell) != (KIND, crc32(body)):
        raise CodecError(f"{what}: the checksum of the reference does not match; the stored bytes are damaged")
    reference = Reference._make(_BODY.unpack(body))
    if reference.hour >= _HOURS:
        raise CodecError(f"{what}: expected a reference to an hour before the year 10000, got hour {reference.hour}")
    return reference


def referred_size(cell: bytes) -> int:
    """How many bytes the cell has that a reference leads to; not checked yet."""
    return int.from_bytes(cell[_LENGTH_AT : _LENGTH_AT + 4])


def digest_of(cell: bytes) -> bytes:
    """What tells one cell from another. Eight bytes: against damage, not against forgers."""
    return blake2b(cell, digest_size=_DIGEST_SIZE).digest()


def segment_key(hour: int, name: bytes) -> str:
    """The key of a segment: digits, hex, dashes and slashes only, which every object store takes as they are."""
    return f"{hour_folder(hour)}/{name.hex()}"


def hour_folder(hour: int) -> str:
    """Where the segments of an hour lie."""
    return f"{day_folder(day_of(hour))}/{hour % 24:02}"


def day_folder(day: date) -> str:
    """Where the segments of a day lie."""
    return f"{FOLDER}/{day}"


def day_number(day: date) -> int:
    """The day, counted since 1970."""
    return day.toordinal() - _FIRST_DAY


def day_of(hour: int) -> date:
    """The day, in UTC, of an hour since 1970."""
    return date.fromordinal(_FIRST_DAY + hour // 24)
