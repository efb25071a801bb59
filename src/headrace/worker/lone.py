"""How the worker in a helper process asks for work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.seam.records import Claim, Claimed
from headrace.worker.claimer import Claimer

_LINGER = 1.0
"""Seconds without a job after which it is through."""


class LoneClaimer(Claimer):
    """Takes one job at a time, whatever its losses, and holds nothing beside it.

    No claim asks for jobs on their last chance alone: they come as they are the first that others have passed over.
    This worker is through, and ``empty`` is set, when none came for a moment, or when as many jobs in a row as there
    are queues were not on their last chance: each queue has come first once.
    """

    def __init__(self, *given: Any, met: Callable[[], None], **more: Any) -> None:
        super().__init__(*given, **more)
        self._met = met
        """Called with each job on its last chance, before it is started."""
        self._others = 0
        """Jobs in a row that were not on their last chance."""
        self._until: float | None = None

    def want(self) -> int:
        if len(self._leases) or self.asking or self._runner.busy:
            return 0
        if self._others >= len(self._request.queues) or self._strays.stuck:
            self.empty.set()
            return 0
        return int(self.open and self._hungry)

    def request(self, limit: int, settling: int) -> Claim:
        given = self._request
        self._heard = False
        return Claim(given.holder, self._turned(), 1, given.lease_for, given.want)

    def got(self, claimed: Claimed, asked: int, sent_at: float, since: float) -> None:
        if claimed.jobs:
            self._until = None
            if self._is_last_chance(claimed.jobs):
                self._others = 0
                self._met()
            else:
                self._others += 1
            self._leases.grant(claimed.jobs, since)
            self._runner.deliver(claimed.jobs)
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
