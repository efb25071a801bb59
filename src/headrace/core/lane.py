"""A lane to the store: one trip at a time, carrying settlements there and jobs back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
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

log = logging.getLogger("headrace")


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
        refused: Callable[[Settlement, Exception], Settlement],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._backoff = Backoff(rng)
        self._observers = observers
        self._settler = settler
        self._claimer = claimer
        self._refused = refused
        self._reason = asyncio.Event()
        self.landed = asyncio.Event()
        """Set while no claim is under way."""
        self.landed.set()
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
            want = self._claimer.want(len(batch)) if self._claimer else 0
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
                await self._stay_away(error)
                if not batch:
                    return
                want = self._claimer.want(len(batch)) if self._claimer and want else 0
                continue
            except Exception as error:
                if batch:
                    await self._settle_one_by_one(batch)
                else:
                    log.exception("a claim failed in a way that the store should not fail; it is tried again")
                    await self._stay_away(error)
                return
            finally:
                self.landed.set()
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

    async def _stay_away(self, error: Exception) -> None:
        self._report_away(error)
        await asyncio.sleep(self._backoff.pause())

    async def _settle_one_by_one(self, batch: list[Settlement]) -> None:
        """The store refuses the batch for what is in it: find out for which, so that the others are stored."""
        assert self._settler is not None
        for settlement in batch:
            state = None
            try:
                [state] = await self._finish_patiently(settlement)
            except Exception as error:
                log.exception("the outcome of job %s was refused", settlement.id.hex())
                self._observers.tell(Event(EventKind.ERROR, settlement.id, error=error, detail="outcome refused"))
                settlement = self._refused(settlement, error)
                try:
                    [state] = await self._finish_patiently(settlement)
                except Exception:
                    log.exception("so was its failure; its lease runs out by itself")
            self._settler.answered([settlement], [state], repeated=False)

    async def _finish_patiently(self, settlement: Settlement) -> list[JobState | None]:
        while True:
            try:
                return await self._backend.finish([settlement], self._clock.stamp())
            except Unavailable as error:
                await self._stay_away(error)

    async def _send(self, batch: list[Settlement], want: int) -> tuple[list[JobState | None], Claimed | None]:
        backend, at = self._backend, self._clock.stamp()
        if not (want and self._claimer):
            return await backend.finish(batch, at), None
        request = self._claimer.request(want, len(batch))
        self.landed.clear()
        if batch and backend.turn is not None:
            return await backend.turn(batch, request, at)
        return [], await backend.claim(request, at)

    def _report_away(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            self._observers.tell(Event(EventKind.STORE_AWAY, error=error, detail=str(error)))

    def _report_back(self, now: float) -> None:
        self.beat = now
        if self._away:
            self._away = False
            self._observers.tell(Event(EventKind.STORE_BACK))
