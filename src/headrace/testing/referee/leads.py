"""Fairness: how many more jobs one tenant was given than another while both could have been served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection


class Leads:
    """Pairs of tenants, and the lead of one over the other since both have been ready for every claim.

    A tenant that is ready has a count of at least the round and at most ``tenant_batch`` above it. So of two tenants
    that are ready throughout, neither gets more than two batches more than the other: one that it may have been behind
    at the start, and one for its turn. Only a tenant that ``tenant_workers`` kept from its jobs may fall further
    behind; it catches up.
    """

    def __init__(self) -> None:
        self._leads: Counter[tuple[str, str]] = Counter()
        self._behind: set[str] = set()

    def contend(self, ready: Collection[str]) -> None:
        """Tenants that are not ready are not compared."""
        for pair in [pair for pair in self._leads if not (pair[0] in ready and pair[1] in ready)]:
            del self._leads[pair]

    def keep_off(self, tenant: str) -> None:
        """Other holders keep this one from the jobs of the tenant: the tenant falls behind."""
        self._behind.add(tenant)

    def all_asleep(self, kept_off: Collection[str]) -> None:
        """A claim has found nothing more. A tenant that was not kept back is at the current round when it comes
        again."""
        self._behind &= set(kept_off)

    def take(self, tenant: str, ready: Collection[str], most: int) -> str | None:
        """The tenant was given a job while these were ready. Returns the one that it is too far ahead of, if any."""
        for other in ready:
            if other != tenant:
                self._leads[tenant, other] += 1
                self._leads[other, tenant] -= 1
                if self._leads[tenant, other] > most and tenant not in self._behind:
                    return other
        return None
