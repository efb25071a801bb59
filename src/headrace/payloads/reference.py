"""A reference: a cell that says where in the object store another cell lies.

Stores keep it as they keep every cell (:mod:`headrace.seam.references`). It has 25 bytes, because a row has up to four
of them, and a database writes each to its log::

    kind (1) · check (2) · hour (3) · name (8) · offset (3) · length (4) · digest (4)

The check is of what follows it: every damage of up to 16 bits in a row is found. The digest is of the cell that the
reference leads to, which has a checksum of its own beside.

Hour and name make the key of a segment. There is no text and no URL in a reference, so a forged one cannot lead
anywhere but to another segment.
"""

from __future__ import annotations

from binascii import crc_hqx
from datetime import date
from hashlib import blake2b
from typing import NamedTuple

from headrace.errors import CodecError
from headrace.seam.references import HOUR_AT, HOUR_SIZE, KIND, SIZE, is_reference, reference_hour
from headrace.text import shown

FOLDER = "segments"
NAME_SIZE = 8
_NAME_AT = HOUR_AT + HOUR_SIZE
_OFFSET_AT = _NAME_AT + NAME_SIZE
_LENGTH_AT = _OFFSET_AT + 3
_DIGEST_AT = _LENGTH_AT + 4
_DIGEST_SIZE = SIZE - _DIGEST_AT
_FIRST_DAY = date(1970, 1, 1).toordinal()


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

        >>> Reference(500_000, bytes(8), 0, 5, bytes(4)).key
        'segments/2027-01-15/08/0000000000000000'
        """
        return segment_key(self.hour, self.name)

    @property
    def day(self) -> date:
        """The day that its hour belongs to."""
        return day_of(self.hour)

    @property
    def cell(self) -> bytes:
        """The reference as a cell of 25 bytes."""
        place = self.hour.to_bytes(HOUR_SIZE) + self.name + self.offset.to_bytes(3) + self.length.to_bytes(4)
        return _checked(place + self.digest)


def read_reference(cell: bytes, what: str) -> Reference:
    """The reference in a cell."""
    if not is_reference(cell):
        raise CodecError(f"{what}: expected a reference of {SIZE} bytes, got {shown(cell)} of {len(cell)} bytes")
    if cell != _checked(cell[HOUR_AT:]):
        raise CodecError(f"{what}: the checksum of the reference does not match; the stored bytes are damaged")
    return Reference(
        reference_hour(cell),
        cell[_NAME_AT:_OFFSET_AT],
        int.from_bytes(cell[_OFFSET_AT:_LENGTH_AT]),
        referred_size(cell),
        cell[_DIGEST_AT:],
    )


def referred_size(cell: bytes) -> int:
    """How many bytes the cell has that a reference leads to; not checked yet."""
    return int.from_bytes(cell[_LENGTH_AT:_DIGEST_AT])


def digest_of(cell: bytes) -> bytes:
    """What tells one cell from another. Four bytes: against damage, not against forgers."""
    return blake2b(cell, digest_size=_DIGEST_SIZE).digest()


def _checked(body: bytes) -> bytes:
    return bytes((KIND,)) + crc_hqx(body, 0).to_bytes(2) + body


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
