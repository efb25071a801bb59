"""The dead letters of each tenant, and which tenants hold most of them."""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush

from headrace.backends.memory.entry import Entry
from headrace.seam.records import JobId

_FEW = 1_000


class DeadLetters:
    """FAILED jobs by tenant, each tenant's in the order of their ends."""

    def __init__(self) -> None:
        self.of: dict[str, dict[JobId, Entry]] = {}
        self._bytes: Counter[str] = Counter()
        self._heaps: dict[str, list[tuple[int, str]]] = {"jobs": [], "bytes": []}
        """What each tenant holds, as a negative number with its name; some items are stale."""

    def add(self, entry: Entry) -> None:
        """It has FAILED."""
        self.of.setdefault(entry.tenant, {})[entry.id] = entry
        self._bytes[entry.tenant] += entry.size
        self._weigh(entry.tenant)

    def remove(self, entry: Entry) -> None:
        """It is FAILED no longer."""
        theirs = self.of[entry.tenant]
        del theirs[entry.id]
        self._bytes[entry.tenant] -= entry.size
        if theirs:
            self._weigh(entry.tenant)
        else:
            del self.of[entry.tenant], self._bytes[entry.tenant]

    def heaviest(self, by: str, limit: int) -> list[tuple[str, int]]:
        """The tenants that hold most, by ``jobs`` or ``bytes``, and how much that is."""
        heap = self._heaps[by]
        found: dict[str, int] = {}
        while heap and len(found) < limit:
            held, tenant = heappop(heap)
            if held and -held == self._held(by, tenant):
                found[tenant] = -held
        for tenant, held in found.items():
            heappush(heap, (-held, tenant))
        return list(found.items())

    def _held(self, by: str, tenant: str) -> int:
        return self._bytes[tenant] if by == "bytes" else len(self.of.get(tenant, ()))

    def _weigh(self, tenant: str) -> None:
        for by, heap in self._heaps.items():
            heappush(heap, (-self._held(by, tenant), tenant))
            if len(heap) > 2 * len(self.of) + _FEW:
                heap[:] = [(-self._held(by, each), each) for each in self.of]
                heapify(heap)
