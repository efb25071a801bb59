"""Schedules and ticks where a memory store keeps them."""

from __future__ import annotations

from bisect import bisect_left, insort

from headrace.seam.ticks import Schedule, Tick


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

    def remove(self, uid: bytes, slot: int) -> None:
        del self.ticks[uid, slot]
        slots = self.slots[uid]
        del slots[bisect_left(slots, slot)]
        if not slots:
            del self.slots[uid]
