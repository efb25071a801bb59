"""Trips to the store, one after the other: each carries settlements there and jobs back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random

from headrace.core.backoff import Backoff
from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.core.slow_calls import took
from headrace.errors import BackendError, ConfigError, Rejected, Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Claimed, JobId, Record, Settlement
from headrace.types import JobState
from headrace.worker.bell import Bell
from headrace.worker.claimer import Claimer
from headrace.worker.judge import Judge
from headrace.worker.outage import Outage
from headrace.worker.renewer import Renewer
from headrace.worker.settler import Settler

log = logging.getLogger("headrace")


class Trips:
    """Makes a trip whenever there is something to carry, one at a time.

    Where the store offers ``finish_and_claim``, one trip settles and claims. A worker then has as many ``Trips`` as the
    store's limits allow. Elsewhere it has one for settlements and one for claims, so that neither waits for the other.
    Settlements that wait for a handler's own transaction have one ``apart``, so that nothing else waits for them.
    """

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
        judge: Judge,
        renewer: Renewer,
        bell: Bell,
        lease: float,
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
        self._judge = judge
        self._renewer = renewer
        self._lease = lease
        self._bell = bell
        self.beat = 0.0
        """When the store last answered, by the loop's clock."""

    async def run(self) -> None:
        """Make trips until cancelled."""
        while True:
            rung = self._bell.rung
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
                await self._bell.wait(rung)

    async def _trip(self, batch: list[Settlement], want: int) -> None:
        repeated, loop = False, asyncio.get_running_loop()
        hold_out = loop.time() + self._lease
        while True:
            sent_at, since = loop.time(), self._clock.elapsed()
            try:
                states, claimed = await self._send(batch, want, repeated=repeated)
            except Exception as error:
                at_fault = _blames(error)
                if not at_fault:  # what was sent may have been carried out
                    repeated = True
                    if want:
                        self._renewer.doubt()
                if batch and (at_fault or self._stumbles(hold_out)):
                    await self._settle_one_by_one(batch, repeated=repeated)
                    return
                if not isinstance(error, Unavailable):
                    if isinstance(error, ConfigError) and not self._outage.ever_answered:
                        raise  # this worker may not claim, and never could
                    log.exception("a trip failed in a way that the store should not fail; it is tried again")
                await self._stay_away(error)
                if not batch:
                    return
                want = self._claimer.want() if self._claimer and want else 0
                continue
            break
        self._backoff.reset()
        self._outage.ends(settled=bool(batch))
        operation = "finish_and_claim" if want and batch else "claim" if want else "finish"
        took(self._observers, operation, self._outage.answered - sent_at)
        self.beat = sent_at
        if batch and self._settler:
            self._settler.answered(batch, states)
        if claimed is not None and self._claimer:
            if claimed.doubtful:
                self._renewer.doubt()
            self._claimer.got(claimed, want, sent_at, since)
            for job in claimed.expired:
                self._observers.tell(
                    Event(EventKind.EXPIRED, job.id, job.queue, job.task, key=job.key, detail=job.reason)
                )

    async def _stay_away(self, error: Exception) -> None:
        self._outage.begins(error)
        await asyncio.sleep(self._backoff.pause())

    def _stumbles(self, hold_out: float) -> bool:
        """Whether the store has refused a batch until ``hold_out`` and yet answers everything else."""
        now = asyncio.get_running_loop().time()
        return now > hold_out and max(self._outage.answered, self._renewer.beat) > now - self._lease / 2

    async def _settle_one_by_one(self, batch: list[Settlement], *, repeated: bool) -> None:
        """The store refuses the batch: because of what is in it, or again and again. Send the outcomes one by one, so
        that only those at fault are not stored. Those that are answered leave the batch.

        An outcome that is at fault becomes a failure. Any other error may pass, so the outcome is sent again. If the
        store takes others meanwhile, that ends after one lease, and the job's lease runs out."""
        assert self._settler is not None
        hold_out = asyncio.get_running_loop().time() + self._lease
        sent = {settlement.id for settlement in batch} if repeated else set()
        blamed: set[JobId] = set()
        while batch:
            settlement = batch[0]
            state = None
            try:
                [state] = await self._finish([settlement], repeated=settlement.id in sent)
            except Exception as error:
                if not _blames(error):
                    if not self._hopeless(error, hold_out):
                        sent.add(settlement.id)
                        batch.append(batch.pop(0))
                        await self._stay_away(error)
                        continue
                    log.error("the outcome of job %s was refused for %g s", settlement.id.hex(), self._lease)
                elif settlement.id not in blamed:
                    log.exception("the outcome of job %s was refused", settlement.id.hex())
                    self._observers.tell(Event(EventKind.ERROR, settlement.id, error=error, detail="outcome refused"))
                    blamed.add(settlement.id)
                    sent.discard(settlement.id)
                    batch[0] = self._judge.refused(settlement, error)
                    continue
                else:
                    log.exception("so was its failure; its lease runs out by itself")
            else:
                self._backoff.reset()
                self._outage.ends(settled=True)
            del batch[0]
            self._settler.answered([settlement], [state])

    def _hopeless(self, error: Exception, hold_out: float) -> bool:
        """Whether an outcome has been refused for the length of a lease although the store answers."""
        if not isinstance(error, Unavailable):
            return asyncio.get_running_loop().time() > hold_out
        return self._outage.settled > hold_out - self._lease and self._stumbles(hold_out)

    async def _send(
        self, batch: list[Settlement], want: int, *, repeated: bool
    ) -> tuple[list[JobState | None], Claimed | None]:
        backend, at = self._backend, self._clock.stamp()
        if not (want and self._claimer):
            return await self._finish(batch, repeated=repeated), None
        request = self._claimer.request(want, len(batch))
        claim = self._claimer.depart(want)
        try:
            if not batch or backend.finish_and_claim is None:
                return [], await backend.claim(request, at)
            states, claimed = await backend.finish_and_claim(batch, request, at)
            return await self._ask_again(batch, states, repeated=repeated), claimed
        finally:  # not before: until its jobs are granted, their leases look unknown
            self._claimer.arrive(claim, want)

    async def _finish(self, batch: list[Settlement], *, repeated: bool) -> list[JobState | None]:
        states = await self._backend.finish(batch, self._clock.stamp())
        return await self._ask_again(batch, states, repeated=repeated)

    async def _ask_again(
        self, batch: list[Settlement], states: list[JobState | None], *, repeated: bool
    ) -> list[JobState | None]:
        """A settlement may be refused because this worker has ended the lease already: by an earlier try of a repeated
        trip, or in the handler's own transaction. The stored job tells, by its state and its epoch. If it cannot be
        fetched, the settlement counts as accepted."""
        entrusted = self._settler.doubtful(batch, states) if self._settler else []
        if not (repeated or entrusted):
            return states
        unsure = [i for i, state in enumerate(states) if state is None] if repeated else entrusted
        records: Sequence[Record | None] = [None] * len(unsure)
        try:
            records = await self._backend.fetch([batch[i].id for i in unsure], at=self._clock.stamp())
        except BackendError as error:
            log.debug("jobs whose outcomes were refused cannot be fetched: %s", error)
        for i, record in zip(unsure, records, strict=True):
            settlement = batch[i]
            if self._settler and i in entrusted and _ended(record, JobState.COMPLETED, settlement.epoch):
                states[i] = self._settler.confirm(settlement)
            elif repeated and (not settlement.state.terminal or _ended(record, settlement.state, settlement.epoch)):
                states[i] = settlement.state
        return states


def _blames(error: Exception) -> bool:
    """Whether an error says that what was sent is at fault. Any other error may pass."""
    return isinstance(error, Rejected) or not isinstance(error, BackendError | ConfigError)


def _ended(record: Record | None, state: JobState, epoch: int) -> bool:
    """Whether the job ended in this state under this lease; also if its record is gone."""
    return record is None or (record.state, record.epoch) == (state, epoch)
