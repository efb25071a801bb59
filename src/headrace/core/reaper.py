"""A duty of every worker: take back what vanished workers left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.errors import Unavailable
from headrace.protocol import Backend
from headrace.records import Reap
from headrace.types import JobState

log = logging.getLogger("headrace")

_KINDS = {
    JobState.AVAILABLE: EventKind.STALLED,
    JobState.FAILED: EventKind.FAILED,
    JobState.CANCELLED: EventKind.CANCELLED,
}


class Reaper:
    """Calls ``reap`` on a jittered beat. It needs no leader: any number of workers share the work.

    While the store is away nobody can renew a lease, so after an outage many have run out whose workers live. Those
    are given time to say so: nothing is taken back before ``steady``.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        rng: Random,
        observers: Observers,
        *,
        every: float,
        max_lost: int,
        overdue: float,
        steady: Callable[[], bool],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._every = every
        self._steady = steady
        self._request = Reap(max_lost=max_lost, spread=int(every * 1e6), outage_overdue=int(overdue * 1e6))

    async def run(self) -> None:
        """Reap until cancelled, the first time at once."""
        while True:
            try:
                full = self._steady() and await self.reap() >= self._request.limit
            except Unavailable:
                full = False
            except Exception:
                log.exception("a reap failed; the next one comes")
                full = False
            # At most one full batch per tenth of a beat: after a mass expiry the herd comes back at a walk.
            pace = 0.1 if full else 0.75 + self._rng.random() / 2
            await asyncio.sleep(self._every * pace)

    async def reap(self) -> int:
        """One batch; how many jobs it took."""
        reaped = await self._backend.reap(self._request, self._clock.stamp())
        for job in reaped:
            kind = EventKind.EXPIRED if job.reason == "expired" else _KINDS[job.state]
            self._observers.tell(Event(kind, job.id, job.queue, job.task, key=job.key, detail=job.reason))
        return len(reaped)
