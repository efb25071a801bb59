"""A duty of every worker: take back what vanished workers left."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from msgspec.structs import replace

from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.core.slow_calls import timed
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Reap
from headrace.types import JobState
from headrace.worker.claimer import Claimer

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
        lease: float,
        holder: str,
        gap: float,
        claimer: Claimer,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._observers = observers
        self._every = every
        self._claimer = claimer
        self._request = Reap(
            holder=holder,
            gap=int(gap * 1e6),
            steady=int(lease / 2 * 1e6),
            max_lost=max_lost,
            spread=int(every * 1e6),
        )

    async def run(self, *, at_once: bool = False) -> None:
        """Reap until cancelled, the first time right away."""
        while True:
            try:
                full = await self.reap(at_once=at_once) >= self._request.limit
            except Unavailable:
                full = False
            except Exception:
                log.exception("a reap failed; the next one comes")
                full = False
            # At most one full batch per tenth of a beat: after a mass expiry the herd comes back at a walk.
            pace = 0.1 if full else 0.75 + self._rng.random() / 2
            await asyncio.sleep(self._every * pace)

    async def reap(self, *, at_once: bool = False) -> int:
        """One batch; how many jobs it took. ``at_once``: they are due right away, and the claimer looks for
        them."""
        request, at = self._request, self._clock.stamp()
        if at_once:  # where time stands still nobody is ever steady, nor late
            request = replace(request, spread=0, holder=request.holder if at is None else None)
        reaped = await timed(self._observers, "reap", self._backend.reap(request, at))
        for job in reaped:
            kind = EventKind.EXPIRED if job.reason == "expired" else _KINDS[job.state]
            self._observers.tell(Event(kind, job.id, job.queue, job.task, key=job.key, detail=job.reason))
        if at_once and reaped:
            self._claimer.wake()
        return len(reaped)
