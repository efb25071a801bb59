"""How a pull asks for jobs: only while somebody waits for them, and no more than that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.seam.records import Claimed
from headrace.worker.claimer import Claimer
from headrace.worker.takers import Takers

_MOMENTS = 5
"""How often in a row a store may say that it will have a job in a moment, until callers no longer wait for it."""


class PullClaimer(Claimer):
    """Claims as many jobs as callers wait for. Jobs that are being loaded count as claimed."""

    def __init__(self, *given: Any, takers: Takers, loading: Callable[[], int], **more: Any) -> None:
        super().__init__(*given, slots=0, prefetch=0, **more)
        self._takers = takers
        self._loading = loading
        self._moments = 0
        """How often in a row the store has said so."""

    def want(self) -> int:
        if not (self.open and self._hungry) or self._takers.alone:
            return 0
        demand = max(0, self._takers.demand - self.asking - self._loading())
        if self._making_room:
            return 0 if len(self._leases) or self.asking else min(1, demand)
        return self._bounded(demand)

    def got(self, claimed: Claimed, asked: int, sent_at: float, since: float) -> None:
        super().got(claimed, asked, sent_at, since)
        self._moments = self._moments + 1 if claimed.next_in == 0 else 0
        in_a_moment = 0 < self._moments <= _MOMENTS
        if not (claimed.jobs or in_a_moment or (self._making_room and self._idle)):
            self._takers.looked(sent_at)
