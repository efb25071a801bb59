"""The journal: what operators did, kept in the store that they did it to."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from headrace.seam.records import Stamp

KEPT = 100_000
"""At least this many entries are kept. When there are more, the oldest go."""


class JournalEntry(Struct, frozen=True):
    """One entry."""

    number: int
    """Rises with every entry; some may be left out."""
    at: int
    """When it was written, by the store's clock."""
    text: bytes
    """As it came. The store reads nothing of it."""


class Journal(Protocol):
    """Entries that are written once, and neither changed nor removed, except when there are too many."""

    async def write(self, text: bytes, at: Stamp = None) -> int:
        """Write an entry of up to 16 KiB, as durably as an insert; returns its number."""

    async def read(self, before: int | None = None, limit: int = 100) -> list[JournalEntry]:
        """Entries, newest first; with ``before``, those with lower numbers. The cost depends on ``limit`` alone."""
