"""Fairness: how many more jobs one tenant was given than another while both might have been."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection


class Leads:
    """Pairs of tenants, and the lead of the one over the other since both have been ready for every claim.

    Whoever is ready has a count of at least the round and at most ``chunk`` above it. So, over any time, of two who are
    ready throughout nobody gets more than two chunks more than the other: one that he may have been behind when it
    began, and one for his turn. Only who was kept from his jobs by ``holders`` may be behind by more, and catches up.
    """

    def __init__(self) -> None:
        self._leads: Counter[tuple[str, str]] = Counter()
        self._behind: set[str] = set()

    def contend(self, ready: Collection[str]) -> None:
        """Of the others there is nothing to be compared."""
        for pair in [pair for pair in self._leads if not (pair[0] in ready and pair[1] in ready)]:
            del self._leads[pair]

    def keep_off(self, tenant: str) -> None:
        """Others have the tokens of the tenant: it falls behind."""
        self._behind.add(tenant)

    def all_asleep(self, kept_off: Collection[str]) -> None:
        """A claim has found nothing more: whoever was not kept off is at the current round when he comes again."""
        self._behind &= set(kept_off)

    def take(self, tenant: str, ready: Collection[str], most: int) -> str | None:
        """The tenant was given a job while these were ready. The one of them that it is too far ahead of, if any."""
        for other in ready:
            if other != tenant:
                self._leads[tenant, other] += 1
                self._leads[other, tenant] -= 1
                if self._leads[tenant, other] > most and tenant not in self._behind:
                    return other
        return None
