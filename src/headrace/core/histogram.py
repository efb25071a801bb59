"""A histogram: how many values were up to each bound, and their sum."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0)
"""The bounds of durations, in seconds."""


class Histogram:
    """How many values were up to each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, weight: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.total += value * weight

    def cumulative(self) -> list[tuple[str, float]]:
        """How many were up to each bound, as Prometheus has it."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        total, found = 0, []
        for name, count in zip(names, self.counts, strict=True):
            total += count
            found.append((name, float(total)))
        return found
