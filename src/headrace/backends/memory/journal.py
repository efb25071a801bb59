"""The journal in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from headrace.seam.journal import KEPT, JournalEntry
from headrace.seam.records import Stamp


class MemoryJournal:
    """See :class:`headrace.seam.journal.Journal`. Shared by all backends on one store."""

    def __init__(self, entries: deque[JournalEntry], now: Callable[[], int]) -> None:
        self._entries = entries
        self._now = now

    async def write(self, text: bytes, at: Stamp = None) -> int:
        number = self._entries[-1].number + 1 if self._entries else 1
        self._entries.append(JournalEntry(number, self._now() if at is None else at, text))
        return number

    async def read(self, before: int | None = None, limit: int = 100) -> list[JournalEntry]:
        older = (one for one in reversed(self._entries) if before is None or one.number < before)
        return list(islice(older, limit))


def new_journal() -> deque[JournalEntry]:
    """An empty one."""
    return deque(maxlen=KEPT)
