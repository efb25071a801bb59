"""A duty of every worker: take back what vanished workers left."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.core.slow import timed
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

    The store takes nothing back for a worker whose own beats have paused: see ``Backend.reap``.
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
        holder: str,
        gap: float,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._every = every
        self._request = Reap(
            holder=holder,
            gap=int(gap * 1e6),
            steady=int(overdue / 2 * 1e6),
            max_lost=max_lost,
            spread=int(every * 1e6),
            outage_overdue=int(overdue * 1e6),
        )

    async def run(self) -> None:
        """Reap until cancelled, the first time at once."""
        while True:
            try:
                full = await self.reap() >= self._request.limit
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
        reaped = await timed(self._observers, "reap", self._backend.reap(self._request, self._clock.stamp()))
        for job in reaped:
            kind = EventKind.EXPIRED if job.reason == "expired" else _KINDS[job.state]
            self._observers.tell(Event(kind, job.id, job.queue, job.task, key=job.key, detail=job.reason))
        return len(reaped)
