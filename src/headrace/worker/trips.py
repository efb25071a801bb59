"""Trips to the store: each takes settlements there and brings jobs back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from headrace.core.backoff import Backoff
from headrace.core.events import Event, EventKind
from headrace.core.slow_calls import took
from headrace.errors import BackendError, ConfigError, PartlyUnavailable, PayloadError, Rejected, Unavailable
from headrace.keeping.hard_bounds import HardBounds, Loads
from headrace.seam.records import Claimed, JobId, Record, Settlement
from headrace.types import JobState
from headrace.worker.claimer import Claimer
from headrace.worker.kit import Kit
from headrace.worker.renewer import Renewer
from headrace.worker.settler import Settler

log = logging.getLogger("headrace")

Stow = Callable[[list[Settlement]], Awaitable[list[Settlement]]]
"""Takes cells of settlements to the object store."""
Refuse = Callable[[Settlement, Exception], Settlement | None]
"""What to store instead of a settlement that the store has rejected; None: nothing, and its lease goes on."""

_OF_DATA = (Rejected, PayloadError, ValueError, TypeError, OverflowError)
"""Errors that a store has because of what is in an outcome."""
_PUT_OFF = 1.0
"""Seconds until a part of the store that is away is asked again to settle what it may have leased."""


class Trips:
    """Makes a trip whenever there is something to carry, one at a time.

    If the store has ``finish_and_claim``, one trip settles and claims, and a worker has as many ``Trips`` as the
    store's limits allow. Otherwise it has one for settlements and one for claims, so that neither waits for the other.
    A further one is for settlements that wait for handlers' own transactions (``apart``): nothing else waits for them.
    """

    def __init__(
        self,
        kit: Kit,
        *,
        settler: Settler | None,
        claimer: Claimer | None,
        refuse: Refuse,
        renewer: Renewer,
        stow: Stow | None = None,
        room: HardBounds | None = None,
        apart: bool = False,
    ) -> None:
        self._take = None if settler is None else settler.take_apart if apart else settler.take
        self._backend, self._clock, self._observers = kit.backend, kit.clock, kit.observers
        self._outage, self._bell, self._lease = kit.outage, kit.bell, kit.leases.lease
        self._backoff = Backoff(kit.rng)
        self._settler = settler
        self._claimer = claimer
        self._refuse = refuse
        self._renewer = renewer
        self._stow = stow
        self._room = room
        self.beat = 0.0
        """When the store last answered, by the loop's clock."""
        self.asking_since: float | None = None
        """Since when the store owes an answer, however often it was asked; None: it owes none."""
        self.turned = 0.0
        """When it last looked whether there is something to carry, by the loop's clock."""
        self.apart = apart

    async def run(self) -> None:
        """Make trips until cancelled."""
        while True:
            rung, self.turned = self._bell.rung, asyncio.get_running_loop().time()
            batch = self._take(self._backend.limits.max_batch) if self._take else []
            want = self._claimer.want() if self._claimer else 0
            if batch or want:
                try:
                    await self._trip(batch, min(want, self._backend.limits.max_batch))
                except asyncio.CancelledError:
                    if self._settler:
                        self._settler.put_back(batch)
                    raise
                finally:
                    self.asking_since = None
            else:
                await self._bell.wait(rung)

    async def _trip(self, batch: list[Settlement], want: int) -> None:
        room = self._room if batch else None
        loads: Loads = {}
        if room is not None:
            most, loads = room.weigh(batch)
            if most < len(batch):
                assert self._settler is not None
                self._settler.put_back(batch[most:])
                del batch[most:]
                want = 0  # first the rest
        if batch and self._stow is not None:
            batch[:] = await self._stowed(batch, self._stow)
            if room is not None:
                loads = room.weigh(batch)[1]
        if room is None:
            await self._carry(batch, self._still_wanted(want))
            return
        await room.make_room(loads)
        try:
            await self._carry(batch, self._still_wanted(want))
        finally:
            room.stored(loads)

    async def _stowed(self, batch: list[Settlement], stow: Stow) -> list[Settlement]:
        """With references where cells have left; whatever goes wrong, an outcome is stored."""
        try:
            return await stow(batch)
        except Exception:
            log.exception("sections of settled jobs cannot be taken to the object store; they stay in the store")
            return batch

    def _still_wanted(self, want: int) -> int:
        """How many jobs to ask for when something was waited for first: the claimer may be closed by now, or another
        trip may have asked for them."""
        return min(want, self._claimer.want()) if self._claimer and want else 0

    async def _carry(self, batch: list[Settlement], want: int) -> None:
        repeated, loop = bool(self._settler and self._settler.were_sent(batch)), asyncio.get_running_loop()
        self.asking_since = loop.time()
        deadline = self.asking_since + self._lease
        while True:
            sent_at, since = loop.time(), self._clock.elapsed()
            try:
                states, claimed = await self._send(batch, want, repeated=repeated)
            except PartlyUnavailable as error:
                self._settle_in_part(batch, error)
                return
            except Exception as error:
                at_fault = _is_rejection(error)
                if not at_fault:  # the store may have carried out what was sent
                    repeated = True
                    if want:
                        self._renewer.doubt()
                if batch and (at_fault or self._is_refused(deadline)):
                    await self._settle_one_by_one(batch, repeated=repeated)
                    return
                if not isinstance(error, Unavailable):
                    if isinstance(error, ConfigError) and not self._outage.ever_answered:
                        raise  # this worker has no right to claim, and never had
                    log.exception("unexpected error of the store; the trip is repeated")
                await self._stay_away(error)
                if not batch:
                    return
                want = self._claimer.want() if self._claimer and want else 0
            else:
                self._arrived(batch, states, claimed, want, sent_at, since)
                return

    def _arrived(
        self,
        batch: list[Settlement],
        states: list[JobState | None],
        claimed: Claimed | None,
        want: int,
        sent_at: float,
        since: float,
    ) -> None:
        """The store has answered: hand on what it said. ``sent_at`` and ``since``: when it was asked, by the loop's
        clock and by the one that leases are measured with."""
        self._backoff.reset()
        self._outage.ends(settled=bool(batch))
        operation = "finish_and_claim" if want and batch else "claim" if want else "finish"
        took(self._observers, operation, self._outage.answered - sent_at)
        if self._observers.travelled is not None:
            settled = self._settler.jobs(batch) if self._settler else []
            self._observers.tell_trip(settled, claimed.jobs if claimed else (), self._outage.answered - sent_at)
        self.beat = sent_at
        if batch and self._settler:
            self._settler.answered(batch, states)
        if claimed is not None and self._claimer:
            if claimed.doubtful:
                self._renewer.doubt()
            self._claimer.got(claimed, want, sent_at, since)
            if self._observers.meter is not None:
                self._observers.meter.claims.add(len(claimed.jobs))
            if self._room is not None and claimed.expired:
                self._room.ended(JobState.CANCELLED, len(claimed.expired))
            for job in claimed.expired:
                self._observers.tell(
                    Event(EventKind.EXPIRED, job.id, job.queue, job.task, key=job.key, detail=job.reason)
                )

    def _settle_in_part(self, batch: list[Settlement], error: PartlyUnavailable) -> None:
        """A part of the store is away. What it may have leased is settled later; the others are not kept waiting."""
        assert self._settler is not None
        self._settler.put_off([batch[n] for n in sorted(error.unanswered)], _PUT_OFF)
        answered = [n for n in range(len(batch)) if n not in error.unanswered]
        self._settler.answered([batch[n] for n in answered], [error.answers[n] for n in answered])
        del batch[:]

    async def _stay_away(self, error: Exception) -> None:
        self._outage.begins(error)
        await asyncio.sleep(self._backoff.pause())

    def _is_refused(self, deadline: float) -> bool:
        """Whether the store has refused a batch until ``deadline``, although it answers everything else."""
        now = asyncio.get_running_loop().time()
        return now > deadline and max(self._outage.answered, self._renewer.beat) > now - self._lease / 2

    async def _settle_one_by_one(self, batch: list[Settlement], *, repeated: bool) -> None:
        """The store refuses the batch: because of what is in it, or again and again. Send the settlements one by one,
        so that only those at fault are not stored. Those that are answered leave the batch.

        For an outcome that is at fault, ``refuse`` says what follows. After any other error the outcome is sent again.
        If the store takes others meanwhile, that ends after one lease, and the job's lease runs out."""
        assert self._settler is not None
        deadline = asyncio.get_running_loop().time() + self._lease
        sent = {settlement.id for settlement in batch} if repeated else set()
        blamed: set[JobId] = set()
        while batch:
            settlement = batch[0]  # it stays there while the store is asked: a trip that is cancelled puts it back
            try:
                [state] = await self._finish([settlement], repeated=settlement.id in sent)
            except PartlyUnavailable as error:
                self._settle_in_part([batch.pop(0)], error)
            except Exception as error:
                if _is_rejection(error):
                    sent.discard(settlement.id)
                    instead = self._rejected(settlement, error, blamed)
                    batch[:1] = [] if instead is None else [instead]
                elif self._hopeless(error, deadline):
                    job_id = settlement.id.hex()
                    log.error("the outcome of job %s was refused for %g s; its lease runs out", job_id, self._lease)
                    del batch[0]
                    self._settler.answered([settlement], [None])
                else:
                    sent.add(settlement.id)
                    batch.append(batch.pop(0))
                    await self._stay_away(error)
            else:
                self._backoff.reset()
                self._outage.ends(settled=True)
                del batch[0]
                self._settler.answered([settlement], [state])

    def _rejected(self, settlement: Settlement, error: Exception, blamed: set[JobId]) -> Settlement | None:
        """What to send instead of a settlement that is at fault; None: nothing, and it is answered. ``blamed``: the
        jobs of which one was at fault already."""
        assert self._settler is not None
        job_id = settlement.id.hex()
        if settlement.id in blamed:
            log.exception("the store rejected even the failure of job %s; its lease runs out", job_id)
            self._settler.answered([settlement], [None])
            return None
        log.exception("the store rejected the outcome of job %s", job_id)
        self._observers.tell(Event(EventKind.ERROR, settlement.id, error=error, detail="outcome refused"))
        blamed.add(settlement.id)
        instead = self._refuse(settlement, error)
        if instead is None:
            self._settler.dropped(settlement)
        return instead

    def _hopeless(self, error: Exception, deadline: float) -> bool:
        """Whether an outcome has been refused for a whole lease, although the store answers."""
        if not isinstance(error, Unavailable):
            return asyncio.get_running_loop().time() > deadline
        return self._outage.settled > deadline - self._lease and self._is_refused(deadline)

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
        finally:  # not earlier: until its jobs are granted, their leases look unknown
            self._claimer.arrive(claim, want)

    async def _finish(self, batch: list[Settlement], *, repeated: bool) -> list[JobState | None]:
        states = await self._backend.finish(batch, self._clock.stamp())
        return await self._ask_again(batch, states, repeated=repeated)

    async def _ask_again(
        self, batch: list[Settlement], states: list[JobState | None], *, repeated: bool
    ) -> list[JobState | None]:
        """A settlement may be refused because this worker has ended the lease already: when the trip was made before,
        or in the handler's own transaction. The state and epoch of the stored job show which. If the job cannot be
        fetched, the settlement counts as accepted."""
        entrusted = self._settler.doubtful(batch, states) if self._settler else []
        if not (repeated or entrusted):
            return states
        unsure = [i for i, state in enumerate(states) if state is None] if repeated else entrusted
        records: Sequence[Record | None] = [None] * len(unsure)
        try:
            records = await self._backend.fetch([batch[i].id for i in unsure], at=self._clock.stamp())
        except BackendError as error:
            log.debug("cannot fetch jobs whose outcomes were refused: %s", error)
        for i, record in zip(unsure, records, strict=True):
            settlement = batch[i]
            if self._settler and i in entrusted and _ended(record, JobState.COMPLETED, settlement.epoch):
                states[i] = self._settler.confirm(settlement)
            elif repeated and _accepted(record, settlement):
                states[i] = settlement.state
        return states


def _is_rejection(error: Exception) -> bool:
    """Whether the error says that what was sent is at fault. After any other error, a repetition may help."""
    return isinstance(error, _OF_DATA) and not isinstance(error, ConfigError)


def _accepted(record: Record | None, settlement: Settlement) -> bool:
    """Whether an earlier try of this settlement was carried out, as far as the stored job shows it. A job that waits
    again may have been claimed since, which says nothing; but a loss shows that it was reaped instead."""
    if settlement.state.terminal:
        return _ended(record, settlement.state, settlement.epoch)
    reaped = record is not None and record.epoch == settlement.epoch and record.lost > 0
    return settlement.keep_lost or not reaped


def _ended(record: Record | None, state: JobState, epoch: int) -> bool:
    """Whether the job ended in this state under this lease, or its record is gone."""
    return record is None or (record.state, record.epoch) == (state, epoch)
