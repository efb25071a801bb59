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
from headrace.errors import BackendError, ConfigError, Unavailable
from headrace.protocol import Backend
from headrace.records import Claimed, Record, Settlement
from headrace.types import JobState

log = logging.getLogger("headrace")


class Lane:
    """Makes a trip whenever there is a reason. Where the store offers ``turn``, every lane does both ways, and there
    are as many as the store says; elsewhere a worker has one for each way, so that neither waits for the other.

    What waits for handlers' own transactions goes by a lane ``apart``, so that nothing else waits for those."""

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
        doubt: Callable[[], None],
        apart: bool = False,
    ) -> None:
        self._take = None if settler is None else settler.take_apart if apart else settler.take
        self._backend = backend
        self._clock = clock
        self._backoff = Backoff(rng)
        self._observers = observers
        self._outage = outage
        self._settler = settler
        self._claimer = claimer
        self._refused = refused
        self._doubt = doubt
        """Called when a claim may have been carried out whose answer is lost."""
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
            batch = self._take(self._backend.limits.max_batch) if self._take else []
            want = self._claimer.want() if self._claimer else 0
            if batch or want:
                try:
                    await self._trip(batch, min(want, self._backend.limits.max_batch))
                except asyncio.CancelledError:
                    if self._settler:
                        self._settler.put_back(batch)
                    raise
            else:
                await self._reason.wait()

    async def _trip(self, batch: list[Settlement], want: int) -> None:
        repeated = False
        while True:
            sent_at, since = asyncio.get_running_loop().time(), self._clock.elapsed()
            try:
                states, claimed = await self._send(batch, want, repeated=repeated)
            except Unavailable as error:
                repeated = True
                if want:
                    self._doubt()
                await self._stay_away(error)
                if not batch:
                    return
                want = self._claimer.want() if self._claimer and want else 0
                continue
            except Exception as error:
                if batch:
                    await self._settle_one_by_one(batch)
                elif isinstance(error, ConfigError):  # this worker may not claim, and never will
                    raise
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
            self._settler.answered(batch, states)
        if claimed is not None and self._claimer:
            self._claimer.got(claimed, want, sent_at, since)
            for job in claimed.expired:
                self._observers.tell(
                    Event(EventKind.EXPIRED, job.id, job.queue, job.task, key=job.key, detail=job.reason)
                )

    async def _stay_away(self, error: Exception) -> None:
        self._outage.begins(error)
        await asyncio.sleep(self._backoff.pause())

    async def _settle_one_by_one(self, batch: list[Settlement]) -> None:
        """The store refuses the batch for what is in it: find out for which, so that the others are stored. Those that
        have their answer leave the batch."""
        assert self._settler is not None
        while batch:
            settlement = batch[0]
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
            del batch[0]
            self._settler.answered([settlement], [state])

    async def _finish_patiently(self, settlement: Settlement) -> list[JobState | None]:
        repeated = False
        while True:
            try:
                return await self._finish([settlement], repeated=repeated)
            except Unavailable as error:
                repeated = True
                await self._stay_away(error)

    async def _send(
        self, batch: list[Settlement], want: int, *, repeated: bool
    ) -> tuple[list[JobState | None], Claimed | None]:
        backend, at = self._backend, self._clock.stamp()
        if not (want and self._claimer):
            return await self._finish(batch, repeated=repeated), None
        request = self._claimer.request(want, len(batch))
        self.landed.clear()
        self._claimer.asking += want
        try:
            if not batch or backend.turn is None:
                return [], await backend.claim(request, at)
            states, claimed = await backend.turn(batch, request, at)
        finally:
            self._claimer.asking -= want
        return await self._ask_again(batch, states, repeated=repeated), claimed

    async def _finish(self, batch: list[Settlement], *, repeated: bool) -> list[JobState | None]:
        states = await self._backend.finish(batch, self._clock.stamp())
        return await self._ask_again(batch, states, repeated=repeated)

    async def _ask_again(
        self, batch: list[Settlement], states: list[JobState | None], *, repeated: bool
    ) -> list[JobState | None]:
        """What is fenced off may have been ended by us all the same: by an earlier try of a repeated trip, or by its
        handler, in a transaction of its own. The job tells, by its state and its epoch; what another run made of it is
        not this one's to tell. Where the job is not to be had, we are believed."""
        entrusted = self._settler.doubtful(batch, states) if self._settler else []
        if not (repeated or entrusted):
            return states
        unsure = [i for i, state in enumerate(states) if state is None] if repeated else entrusted
        records: Sequence[Record | None] = [None] * len(unsure)
        try:
            records = await self._backend.fetch([batch[i].id for i in unsure], at=self._clock.stamp())
        except BackendError as error:
            log.debug("what became of outcomes that were refused is not to be had: %s", error)
        for i, record in zip(unsure, records, strict=True):
            settlement = batch[i]
            if self._settler and i in entrusted and _ended(record, JobState.COMPLETED, settlement.epoch):
                states[i] = self._settler.confirm(settlement)
            elif repeated and (not settlement.state.terminal or _ended(record, settlement.state, settlement.epoch)):
                states[i] = settlement.state
        return states


def _ended(record: Record | None, state: JobState, epoch: int) -> bool:
    """Whether the job ended like that under this lease, as far as anybody knows."""
    return record is None or (record.state, record.epoch) == (state, epoch)
