"""Segments: the cells of one batch, packed into few objects and read back by range.

A segment lies in the folder of an hour, under a random name, and is written once. Delayed jobs are packed by the hour
in which they are due, so that a segment is done with when its hour is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple, TypeVar

from headrace.core.clock import Clock
from headrace.errors import HeadraceError, ObjectCorrupt, ObjectMissing, ObjectsUnavailable
from headrace.payloads import offload
from headrace.payloads.objects import LARGE, Objects, Range, for_each
from headrace.payloads.reference import NAME_SIZE, Reference, day_of, digest_of, segment_key

T = TypeVar("T")

_HOUR = 3_600_000_000
_SMALL = 512 * 1024
"""A segment below this size takes in the next hours of its day, rather than that each hour costs a request."""
_NAMES_TRIED = 3


class ToStow(NamedTuple):
    """A cell on its way to the object store."""

    cell: bytes
    due: int | None = None
    """The instant at which its job is due; None: now."""


class Segments:
    """Stows cells in the object store and loads them again, in batches."""

    def __init__(self, objects: Objects, clock: Clock, rng: Random) -> None:
        self._objects = objects
        self._clock = clock
        self._rng = rng

    async def stow(self, cells: Sequence[ToStow]) -> list[Reference]:
        """Store all cells, durably; a reference for each, in order. After an error, some may be stored for nothing."""
        found: dict[int, Reference] = {}

        async def write(segment: tuple[int, list[int]]) -> None:
            hour, part = segment
            own = [cells[index].cell for index in part]
            found.update(zip(part, await self._write(hour, own), strict=True))

        await for_each(packed(cells, self._clock.now()), write)
        return [found[index] for index in range(len(cells))]

    async def load(self, references: Sequence[Reference]) -> list[bytes | HeadraceError]:
        """The cells that the references name, in order, as they were stowed.

        In the place of a cell that cannot be had is the reason: ``ObjectMissing``, ``ObjectCorrupt``,
        ``ObjectsUnavailable`` or ``ObjectsRefused``. Once the object store does not answer, no more is asked of it.
        """
        objects: dict[str, set[Reference]] = {}
        for one in references:
            objects.setdefault(one.key, set()).add(one)
        found: dict[Reference, bytes | HeadraceError] = {}
        outage: ObjectsUnavailable | None = None

        async def read(wanted: set[Reference]) -> None:
            nonlocal outage
            try:
                found.update(dict.fromkeys(wanted, outage) if outage else await self._read([*wanted]))
            except ObjectsUnavailable as error:
                outage = error
                found.update(dict.fromkeys(wanted, error))
            except ObjectMissing as error:
                found.update(dict.fromkeys(wanted, error))

        await for_each(objects.values(), read)
        return [found[one] for one in references]

    async def _write(self, hour: int, cells: Sequence[bytes]) -> list[Reference]:
        """Write one segment."""
        if sum(map(len, cells)) > offload.LARGE:
            body, digests = await asyncio.to_thread(_joined, cells)
        else:
            body, digests = _joined(cells)
        name = await self._create(hour, body)
        offsets = accumulate(map(len, cells), initial=0)
        return [
            Reference(hour, name, offset, len(cell), digest)
            for offset, cell, digest in zip(offsets, cells, digests, strict=False)
        ]

    async def _read(self, wanted: Sequence[Reference]) -> dict[Reference, bytes | HeadraceError]:
        """Read cells of one segment, and check them."""
        cells = await self._objects.read(wanted[0].key, [Range(one.offset, one.length) for one in wanted])
        if sum(map(len, cells)) > offload.LARGE:
            return await asyncio.to_thread(_checked, wanted, cells)
        return _checked(wanted, cells)

    async def _create(self, hour: int, body: bytes) -> bytes:
        """Write a segment under a new name. A name is taken if a request was repeated whose first answer got lost."""
        for _ in range(_NAMES_TRIED):
            name = self._rng.getrandbits(8 * NAME_SIZE).to_bytes(NAME_SIZE, "big")
            if await self._objects.create(segment_key(hour, name), body):
                return name
        raise ObjectsUnavailable(
            f"object store {self._objects.location.where}: expected that a random key is free, got {_NAMES_TRIED} in a "
            "row that are taken; check that it can create objects on condition (If-None-Match: *)"
        )


def in_parts(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in parts whose cells can be in memory together, or with one that is larger by itself.

    >>> list(in_parts([9, 5_000_000, 5_000_000, 7], lambda size: size))
    [[9, 5000000], [5000000, 7]]
    """
    part: list[T] = []
    total = 0
    for item in items:
        weight = size(item)
        if part and total + weight > LARGE:
            yield part
            part, total = [], 0
        part.append(item)
        total += weight
    if part:
        yield part


def packed(cells: Sequence[ToStow], now: int) -> Iterator[tuple[int, list[int]]]:
    """The segments to write: the hour of each, and which cells it takes. A large cell has a segment to itself.

    >>> hour = 3_600_000_000
    >>> list(packed([ToStow(b"a", 30 * hour), ToStow(b"b"), ToStow(b"c", 2 * hour)], now=0))
    [(2, [1, 2]), (30, [0])]
    """
    hours = [max(now, now if one.due is None else one.due) // _HOUR for one in cells]
    part: list[int] = []
    size = 0
    for index in sorted(range(len(cells)), key=hours.__getitem__):
        length = len(cells[index].cell)
        if part and (size + length > LARGE or _apart(hours[part[-1]], hours[index], size)):
            yield hours[part[-1]], part
            part, size = [], 0
        part.append(index)
        size += length
    if part:
        yield hours[part[-1]], part


def _apart(one: int, other: int, size: int) -> bool:
    """Whether cells that are due in these hours belong in two segments, with this many bytes in the first."""
    return one != other and (size >= _SMALL or day_of(one) != day_of(other))


def _joined(cells: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    return (cells[0] if len(cells) == 1 else b"".join(cells)), [digest_of(cell) for cell in cells]


def _checked(wanted: Sequence[Reference], cells: Sequence[bytes]) -> dict[Reference, bytes | HeadraceError]:
    return {
        one: cell if len(cell) == one.length and digest_of(cell) == one.digest else _corrupt(one, cell)
        for one, cell in zip(wanted, cells, strict=True)
    }


def _corrupt(reference: Reference, cell: bytes) -> ObjectCorrupt:
    came = f"only {len(cell)}" if len(cell) < reference.length else "others"
    return ObjectCorrupt(
        f"object {reference.key}: expected the {reference.length} bytes at {reference.offset} that were stored, got "
        f"{came}; restore the object if the store keeps versions, else the section is lost"
    )
