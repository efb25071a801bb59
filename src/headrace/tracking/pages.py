"""What is on a sheet, and how a sheet that is too full is divided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from headrace.errors import Corrupt

FULL = 1_800
"""A sheet with more bytes is divided. PostgreSQL keeps one of this size in a page, together with its next version."""
_SHARE = 1_080
"""Bytes of a part, if a sheet is divided: each part has room for more."""
_HEAD = Struct("<IIH")


class Entry(NamedTuple):
    """A subject on a sheet: when it was added, and when it was visited before it came to this sheet, in seconds since
    1970 (0: never)."""

    added: int
    seen: int


Entries = dict[str, Entry]


def point(name: str) -> int:
    """Where a subject lies among all: 52 bits, evenly spread."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 12


def pack(entries: Mapping[str, Entry]) -> bytes:
    """The content of a sheet."""
    parts = []
    for name, entry in entries.items():
        encoded = name.encode()
        parts.append(_HEAD.pack(entry.added, entry.seen, len(encoded)))
        parts.append(encoded)
    return b"".join(parts)


def unpack(content: bytes) -> Entries:
    """The subjects of a sheet.

    >>> unpack(pack({"a": Entry(1, 0)}))
    {'a': Entry(added=1, seen=0)}
    """
    entries: Entries = {}
    at, end = 0, len(content)
    try:
        while at < end:
            added, seen, size = _HEAD.unpack_from(content, at)
            at += _HEAD.size + size
            entries[content[at - size : at].decode()] = Entry(added, seen)
    except (ValueError, StructError) as error:
        raise Corrupt(f"a sheet of a tracker cannot be read: {error}") from error
    if at != end:
        raise Corrupt("a sheet of a tracker cannot be read: it ends in the middle of a subject")
    return entries


def size_of(name: str) -> int:
    """Bytes that a subject takes up."""
    return _HEAD.size + len(name.encode())


def divide(low: int, entries: Entries) -> Iterator[tuple[int, Entries]]:
    """The sheet that begins at ``low``; or several, if it is too full, each with where it begins."""
    left = sum(map(size_of, entries))
    if left <= FULL:
        yield low, entries
        return
    part: Entries = {}
    filled, last = 0, -1
    for at, name in sorted((point(name), name) for name in entries):
        if filled >= _SHARE and at != last and left >= _SHARE // 2:
            yield low, part
            low, part, filled = at, {}, 0
        part[name] = entries[name]
        filled += size_of(name)
        left -= size_of(name)
        last = at
    yield low, part
