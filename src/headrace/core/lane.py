"""A lane to the store: one trip at a time, carrying settlements there and jobs back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

from headrace.core.backoff import Backoff
from headrace.core.claimer import Claimer
from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.core.outage import Outage
from headrace.core.settler import Settler
from headrace.errors import BackendError, Unavailable
from headrace.protocol import Backend
from headrace.records import Claimed, Record, Settlement
from headrace.types import JobState

log = logging.getLogger("headrace")


class Lane:
    """Makes a trip whenever there is a reason. Where the store offers ``turn``, every lane does both ways, and there
    are as many as the store says; elsewhere a worker has one for each way, so that neither waits for the other."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        rng: Random,
        observers: Observers,
        outage: Outage,
        *,
        settler: Settler | None,
        claimer: Claimer | None,
        refused: Callable[[Settlement, Exception], Settlement],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._backoff = Backoff(rng)
        self._observers = observers
        self._outage = outage
        self._settler = settler
        self._claimer = claimer
        self._refused = refused
        self._reason = asyncio.Event()
        self.landed = asyncio.Event()
        """Set while no claim is under way."""
        self.landed.set()
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
                await self._stay_away(error)
                if not batch:
                    return
                want = self._claimer.want() if self._claimer and want else 0
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
        self._outage.ends()
        self.beat = sent_at
        if batch and self._settler:
            if repeated:
                await self._recall(batch, states)
            self._settler.answered(batch, states)
        if claimed is not None and self._claimer:
            self._claimer.got(claimed, want, sent_at)
            for job in claimed.expired:
                self._observers.tell(
                    Event(EventKind.EXPIRED, job.id, job.queue, job.task, key=job.key, detail=job.reason)
                )

    async def _stay_away(self, error: Exception) -> None:
        self._outage.begins(error)
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
            self._settler.answered([settlement], [state])

    async def _finish_patiently(self, settlement: Settlement) -> list[JobState | None]:
        while True:
            try:
                return await self._finish([settlement])
            except Unavailable as error:
                await self._stay_away(error)

    async def _send(self, batch: list[Settlement], want: int) -> tuple[list[JobState | None], Claimed | None]:
        backend, at = self._backend, self._clock.stamp()
        if not (want and self._claimer):
            return await self._finish(batch), None
        request = self._claimer.request(want, len(batch))
        self.landed.clear()
        self._claimer.asking += want
        try:
            if not batch or backend.turn is None:
                return [], await backend.claim(request, at)
            states, claimed = await backend.turn(batch, request, at)
        finally:
            self._claimer.asking -= want
        return await self._ask_again(batch, states), claimed

    async def _finish(self, batch: list[Settlement]) -> list[JobState | None]:
        return await self._ask_again(batch, await self._backend.finish(batch, self._clock.stamp()))

    async def _ask_again(self, batch: list[Settlement], states: list[JobState | None]) -> list[JobState | None]:
        """A handler that completes its job in a transaction of its own ends the lease, if that commits: such a job is
        complete, under the very epoch."""
        if self._settler and (doubtful := self._settler.doubtful(batch, states)):
            records: Sequence[Record | None] = [None] * len(doubtful)
            try:
                records = await self._backend.fetch([batch[i].id for i in doubtful], at=self._clock.stamp())
            except BackendError as error:
                log.debug("whether handlers completed their jobs is not to be had; they are believed: %s", error)
            for i, record in zip(doubtful, records, strict=True):
                if record is None or (record.state is JobState.COMPLETED and record.epoch == batch[i].epoch):
                    states[i] = self._settler.confirm(batch[i])
        return states

    async def _recall(self, batch: list[Settlement], states: list[JobState | None]) -> None:
        """A lease that a repeated trip finds gone was ended by an earlier try, unless the job says otherwise: then it
        was taken back meanwhile, and what another run made of the job is not this one's to tell."""
        gone = [i for i, state in enumerate(states) if state is None]
        records: Sequence[Record | None] = [None] * len(gone)
        try:
            records = await self._backend.fetch([batch[i].id for i in gone], at=self._clock.stamp())
        except BackendError as error:
            log.debug("what became of repeated outcomes is not to be had; they are taken for stored: %s", error)
        for i, record in zip(gone, records, strict=True):
            state, epoch = batch[i].state, batch[i].epoch
            if record is None or not state.terminal or (record.state, record.epoch) == (state, epoch):
                states[i] = state
