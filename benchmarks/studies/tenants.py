"""A crowd of tenants: many that have as little as each other, and one that has a hundred times that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

QUEUE = "tenants"
HEAVY = 0
"""The number of the heavy tenant; the others go on from there."""
RULES = {"tenant_batch": 10}
"""Tenants take turns, and nothing else holds anybody back."""


def name(tenant: int) -> str:
    """As the store knows it."""
    return f"tenant-{tenant}"


@dataclass(frozen=True)
class Crowd:
    """``tenants`` of them; the light ones have ``each`` jobs, the heavy one ``load`` times as many."""

    tenants: int = 1_000
    each: int = 50
    load: int = 100

    @property
    def jobs(self) -> int:
        return (self.tenants - 1 + self.load) * self.each

    def in_order(self) -> list[int]:
        """Whose job comes when: first all those of the heavy tenant, then everybody's in one go."""
        light = [tenant for tenant in range(1, self.tenants) for _ in range(self.each)]
        return [HEAVY] * self.each * self.load + light

    def evenness(self, order: Sequence[int]) -> float:
        """Jain's index over the light tenants of what they had among the first half of all jobs."""
        had = Counter(order[: len(order) // 2])
        return jain([had[tenant] for tenant in range(1, self.tenants)])

    def heavy_share(self, order: Sequence[int]) -> float:
        """The heavy tenant's part in the first half of all jobs."""
        half = order[: len(order) // 2]
        return half.count(HEAVY) / len(half)


def jain(shares: Sequence[float]) -> float:
    """1 when all have the same, 1/n when one has all.

    >>> jain([3, 3, 3]), jain([6, 0, 0]) == 1 / 3
    (1.0, True)
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
