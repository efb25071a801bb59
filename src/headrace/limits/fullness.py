"""How full queues and the store are, for messages about refused jobs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.seam.policy import STORE
from headrace.seam.records import Room

_TOLD = 3
"""Queues that one message names."""


class Fullness(Struct, frozen=True):
    """The full queues, and the store if it is full, by name, as far as they are known.

    >>> fullness = Fullness({"mail": Room("mail", 100, 100)})
    >>> fullness.describe([("mail", None)])
    "queue 'mail' is full (100 of 100 jobs wait)"
    """

    known: dict[str, Room] = {}

    @property
    def store_full(self) -> bool:
        return STORE in self.known

    @property
    def by_bytes(self) -> bool:
        """Whether all of them are full because of a budget of bytes."""
        return bool(self.known) and all(room.bytes for room in self.known.values())

    def full(self, queues: Sequence[str]) -> list[str]:
        """Which of these queues are full, and the store if it is; empty: not known."""
        return [name for name in (STORE, *queues) if name in self.known]

    def describe(self, pairs: Sequence[tuple[str, str | None]]) -> str:
        """In words, why there was no room for jobs of these queues and of those they overflow to."""
        store = f"the store is full ({self.known[STORE]} in all queues together)" if self.store_full else ""
        told = [self._describe(*pair, store) for pair in pairs[:_TOLD]]
        more = f"{len(pairs) - _TOLD} more queues had no room either" if len(pairs) > _TOLD else ""
        return "; ".join(dict.fromkeys(filter(None, (store, *told, more))))

    def _describe(self, queue: str, overflow: str | None, store: str) -> str:
        names = [queue] if overflow is None else [queue, overflow]
        if not all(name in self.known for name in names):
            if store:
                return ""
            rest = "" if overflow is None else f" or its overflow {overflow!r}"
            return f"there was no room in queue {queue!r}{rest}: it, or the store, is full"
        told = f"queue {queue!r} is full ({self.known[queue]})"
        return told if overflow is None else f"{told}, and so is its overflow {overflow!r} ({self.known[overflow]})"
