"""Usage: how many bytes a store takes up, and how many it has."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class Usage(Struct, frozen=True):
    """A store in bytes."""

    used: int
    """What jobs and all that belongs to them take up, indexes included, without what is free to be used again, as far
    as the store knows that."""
    capacity: int | None = None
    """How much there may be, where the store can tell: the memory of a server, or what is used and what is free on a
    volume."""
    parts: dict[str, int] = {}
    """More for people: ``free`` bytes that can be used again, ``wal`` bytes, ``dead_tuples``, and the ``reserve``,
    which does not count as used. And signs of pressure on a server: how many ``commits`` or ``commands`` there were so
    far, how many ``archive_failures``, and whether what it saves could not be written (``save_failed``)."""


class MeasureUsage(Protocol):
    """Measures a store. The cost does not depend on how many jobs there are."""

    async def __call__(self) -> Usage:
        """How many bytes the store takes up now, roughly. Of several servers, the fullest one. Jobs that fill room
        which others left may count some seconds later."""


class KeepReserve(Protocol):
    """Keeps room aside, so that work and cleaning up can go on when there is none left."""

    async def __call__(self, bytes: int) -> int:
        """Come closer to this many bytes in a bounded step; how many are kept now, roughly. 0: give them up at once,
        which works on a store without room. What is kept may be lost when the server crashes."""
