"""How a helper process asks for work: jobs on their last chance, one at a time."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.seam.records import Claim, Claimed
from headrace.worker.claimer import Claimer
from headrace.worker.helper import Helped

_LINGER = 1.0
"""Seconds without a job after which the helper ends."""


class HelperClaimer(Claimer):
    """Claims one job at a time, however often it was lost, and holds no other meanwhile.

    A claim cannot ask for jobs on their last chance only. But other workers pass them over, so they come first. The
    helper ends, and ``empty`` is set, when no job came for a second, or when as many jobs in a row as there are queues
    were not on their last chance: each queue has come first once.
    """

    def __init__(self, *given: Any, helped: Helped, **more: Any) -> None:
        super().__init__(*given, **more)
        self._helped = helped
        self._others = 0
        """Jobs in a row that were not on their last chance."""
        self._until: float | None = None

    def want(self) -> int:
        if len(self._leases) or self.asking or self._consumer.busy:
            return 0
        if self._others >= len(self._request.queues) or self._stuck:
            self.empty.set()
            return 0
        return int(self.open and self._hungry)

    def request(self, limit: int, settling: int) -> Claim:
        given = self._request
        self._heard = False
        return Claim(given.holder, self._rotated_queues(), 1, given.lease_for, given.want)

    def got(self, claimed: Claimed, asked: int, sent_at: float, since: float) -> None:
        if claimed.jobs:
            self._until = None
            if self._is_last_chance(claimed.jobs):
                self._others = 0
                self._helped.job_found()
            else:
                self._others += 1
            self._leases.grant(claimed.jobs, since)
            self._deliver(claimed.jobs)
            return
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + _LINGER
        if now >= self._until:
            self._hungry = False
            self.empty.set()
        elif self.open and not (claimed.expired or self._heard):
            self._hungry = False
            self._sleep(min(self._pause(claimed, due=claimed.next_in == 0), self._until - now))
