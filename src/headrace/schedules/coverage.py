"""Coverage: how many slots of a schedule fired, of those that should have."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.schedules.spec import TickInfo


class Coverage(Struct, frozen=True):
    """How many slots fired of those that should have."""

    fired: int
    skipped: int
    missed: int
    cancelled: int
    """Slots whose jobs were cancelled; not counted as fired."""

    @property
    def share(self) -> float | None:
        """Of the slots that should have fired; None if there were none."""
        total = self.fired + self.missed + self.cancelled
        return self.fired / total if total else None

    def __str__(self) -> str:
        if self.share is None:
            return f"no slot should have fired, {self.skipped:,} skipped" if self.skipped else "no slot has come yet"
        more = f", {self.cancelled:,} cancelled" if self.cancelled else ""
        return f"{self.share:.1%}: {self.fired:,} fired, {self.missed:,} missed, {self.skipped:,} skipped{more}"


def coverage(ticks: Sequence[TickInfo]) -> Coverage:
    """Over these ticks."""
    counts = {"fired": 0, "skipped": 0, "missed": 0, "cancelled": 0}
    for tick in ticks:
        counts["cancelled" if tick.state == "cancelled" else tick.outcome] += tick.count
    return Coverage(**counts)
