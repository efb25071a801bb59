"""How full queues are, and the store: what is told to those whose jobs were refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from headrace.policy import STORE, PolicyState
from headrace.records import Stats

_TOLD = 3
"""Queues that one message names."""


class Room(Struct, frozen=True):
    """So many jobs may wait, and so many do."""

    depth: int
    waiting: int

    @property
    def full(self) -> bool:
        return self.waiting >= self.depth

    def __str__(self) -> str:
        return f"{self.waiting:,} wait, {self.depth:,} may"


class Rooms(Struct, frozen=True):
    """Those that have a depth, by name; as far as it is known.

    >>> rooms = Rooms({"mail": Room(100, 100), "slow": Room(5, 2), "": Room(200, 150)})
    >>> rooms.tell([("mail", None)])
    "queue 'mail' is full (100 wait, 100 may)"
    """

    known: dict[str, Room] = {}

    @classmethod
    def of(cls, states: Iterable[PolicyState], stats: Stats) -> Rooms:
        """As the store tells."""
        waiting = {queue.queue: queue.available + queue.jobs_paused for queue in stats.queues}
        waiting[STORE] = sum(waiting.values())
        policies = [state.policy for state in states]
        return cls({one.queue: Room(one.depth, waiting.get(one.queue, 0)) for one in policies if one.depth is not None})

    @property
    def store_full(self) -> bool:
        return self._full(STORE)

    def _full(self, name: str) -> bool:
        return name in self.known and self.known[name].full

    def full(self, queues: Sequence[str]) -> list[str]:
        """Those of these queues that are full, and the store; empty: that is not known."""
        return [name for name in (STORE, *queues) if self._full(name)]

    def tell(self, pairs: Sequence[tuple[str, str | None]]) -> str:
        """In words, why there was no room for jobs of these queues and those that they overflow to."""
        store = f"the store takes no more (of all queues together {self.known[STORE]})" if self.store_full else ""
        told = [self._tell(*pair, store) for pair in pairs[:_TOLD]]
        more = f"and so it was with {len(pairs) - _TOLD} other queues" if len(pairs) > _TOLD else ""
        return "; ".join(dict.fromkeys(filter(None, (store, *told, more))))

    def _tell(self, queue: str, overflow: str | None, store: str) -> str:
        names = [queue] if overflow is None else [queue, overflow]
        if not all(map(self._full, names)):
            if store:
                return ""
            # Room was made meanwhile, or nothing is known of it.
            rest = "" if overflow is None else f" nor in its overflow {overflow!r}"
            return f"there was no room in queue {queue!r}{rest}: as many jobs waited there, or in the store, as may"
        told = f"queue {queue!r} is full ({self.known[queue]})"
        return told if overflow is None else f"{told}, and so is its overflow {overflow!r} ({self.known[overflow]})"
