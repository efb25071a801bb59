"""A lane to the store: one trip at a time, carrying settlements there and jobs back."""

from __future__ import annotations

import asyncio
from random import Random

from headrace.core.backoff import Backoff
from headrace.core.claimer import Claimer
from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.core.settler import Settler
from headrace.errors import Unavailable
from headrace.protocol import Backend
from headrace.records import Claimed, Settlement
from headrace.types import JobState


class Lane:
    """Makes a trip whenever there is a reason. Where the store offers ``turn``, one lane does both ways; elsewhere a
    worker has two lanes, so that neither waits for the other."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        rng: Random,
        observers: Observers,
        *,
        settler: Settler | None,
        claimer: Claimer | None,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._backoff = Backoff(rng)
        self._observers = observers
        self._settler = settler
        self._claimer = claimer
        self._reason = asyncio.Event()
        self._away = False
        self.beat = 0.0
        """When the store last answered, by the loop's clock."""

    def nudge(self) -> None:
        """Something changed: look whether a trip is due."""
        self._reason.set()

    async def run(self) -> None:
        """Make trips until cancelled."""
        while True:
            self._reason.clear()
            batch = self._settler.take(self._backend.limits.max_batch) if self._settler else []
            want = self._claimer.want() if self._claimer else 0
            if batch or want:
                await self._trip(batch, min(want, self._backend.limits.max_batch))
            else:
                await self._reason.wait()

    async def _trip(self, batch: list[Settlement], want: int) -> None:
        repeated = False
        while True:
            sent_at = asyncio.get_running_loop().time()
            try:
                states, claimed = await self._send(batch, want)
            except Unavailable as error:
                repeated = True
                self._report_away(error)
                await asyncio.sleep(self._backoff.pause())
                if not batch:
                    return
                want = self._claimer.want() if self._claimer and want else 0
                continue
            break
        self._backoff.reset()
        self._report_back(sent_at)
        if batch and self._settler:
            self._settler.answered(batch, states, repeated=repeated)
        if claimed is not None and self._claimer:
            self._claimer.got(claimed, want, sent_at)
            for job in claimed.expired:
                self._observers.tell(
                    Event(EventKind.EXPIRED, job.id, job.queue, job.task, key=job.key, detail=job.reason)
                )

    async def _send(self, batch: list[Settlement], want: int) -> tuple[list[JobState | None], Claimed | None]:
        backend, at = self._backend, self._clock.stamp()
        if not (want and self._claimer):
            return await backend.finish(batch, at), None
        request = self._claimer.request(want, len(batch))
        if batch and backend.turn is not None:
            return await backend.turn(batch, request, at)
        return [], await backend.claim(request, at)

    def _report_away(self, error: Unavailable) -> None:
        if not self._away:
            self._away = True
            self._observers.tell(Event(EventKind.STORE_AWAY, error=error, detail=str(error)))

    def _report_back(self, now: float) -> None:
        self.beat = now
        if self._away:
            self._away = False
            self._observers.tell(Event(EventKind.STORE_BACK))
