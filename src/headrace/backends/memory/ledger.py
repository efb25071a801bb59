"""Schedules and ticks where a memory store keeps them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from headrace.seam.ticks import Schedule, Tick

TICK_BYTES = 100


class Ledger:
    """What a memory store knows of schedules; under the store's lock."""

    def __init__(self) -> None:
        self.schedules: dict[str, Schedule] = {}
        self.ticks: dict[tuple[bytes, int], Tick] = {}
        """By the order in which they were planned."""
        self.slots: dict[bytes, list[int]] = {}
        """Of each schedule, in order."""

    def add(self, uid: bytes, tick: Tick) -> None:
        self.ticks[uid, tick.slot] = tick
        insort(self.slots.setdefault(uid, []), tick.slot)

    def enter(self, uid: bytes, ticks: Iterable[Tick]) -> None:
        """Ticks of another store, of slots that are not here."""
        for tick in ticks:
            if (uid, tick.slot) not in self.ticks:
                self.add(uid, tick)
        self.ticks = dict(sorted(self.ticks.items(), key=lambda item: item[1].planned_at))

    def remove(self, name: tuple[bytes, int]) -> None:
        uid, slot = name
        del self.ticks[uid, slot]
        slots = self.slots[uid]
        del slots[bisect_left(slots, slot)]
        if not slots:
            del self.slots[uid]
