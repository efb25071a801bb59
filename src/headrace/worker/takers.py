"""Callers that wait for jobs, and the jobs that they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from headrace.core.events import EventKind
from headrace.errors import Unavailable
from headrace.schedules.tick_notes import at_most_once
from headrace.seam.records import JobId, Leased, Settlement
from headrace.types import JobState
from headrace.worker.attempt_events import AttemptEvents
from headrace.worker.judge import NOT_AGAIN
from headrace.worker.kit import Kit
from headrace.worker.pulled_job import Held
from headrace.worker.slot import StopReason


class Taker:
    """A caller that waits for jobs."""

    __slots__ = ("future", "last_look", "limit", "looked", "since")

    def __init__(self, limit: int, since: float) -> None:
        self.limit = limit
        self.since = since
        """When it came, by the loop's clock."""
        self.future: asyncio.Future[list[Held]] = asyncio.get_running_loop().create_future()
        self.looked = False
        """Whether a claim that was sent since then found nothing."""
        self.last_look = False
        """Whether the next such claim ends its wait."""


class Takers:
    """Hands claimed jobs to the callers that wait, first come first served, and knows what they hold. What comes when
    nobody waits any more goes back to the store at once."""

    def __init__(self, kit: Kit, batch: int) -> None:
        self._leases, self._settler, self._judge = kit.leases, kit.settler, kit.judge
        self.events = AttemptEvents(kit.observers, kit.clock)
        self._last_chance = kit.last_chance
        self.alive = batch
        self.held: dict[JobId, Held] = {}
        """Those that were handed out and are not settled, by id."""
        self._waiting: list[Taker] = []
        self.active = 0.0
        """When a caller last came, or had an answer, by the loop's clock."""
        kit.settler.hears = self._answered

    # -- callers

    @property
    def demand(self) -> int:
        """How many jobs the callers wait for."""
        return sum(taker.limit for taker in self._waiting)

    def add(self, limit: int) -> Taker:
        """A caller comes, and waits."""
        self.active = asyncio.get_running_loop().time()
        taker = Taker(limit, self.active)
        self._waiting.append(taker)
        return taker

    def remove(self, taker: Taker) -> None:
        """The caller waits no longer."""
        self.active = asyncio.get_running_loop().time()
        if taker in self._waiting:
            self._waiting.remove(taker)

    def disown(self, taker: Taker) -> None:
        """The caller was cancelled. If it was handed jobs at the same moment, they go back."""
        if taker.future.done() and not taker.future.cancelled() and taker.future.exception() is None:
            for held in taker.future.result():
                self._forget(held, "its caller was cancelled")

    def looked(self, sent_at: float) -> None:
        """A claim found nothing. It was sent at this moment."""
        for taker in list(self._waiting):
            if taker.since <= sent_at:
                taker.looked = True
                if taker.last_look:
                    self._answer(taker, [])

    def fail(self, error: BaseException) -> None:
        """Nothing more will come: all who wait get the error."""
        for taker in self._waiting:
            if not taker.future.done():
                taker.future.set_exception(error)
        self._waiting.clear()

    def end(self) -> None:
        """Nothing more will come, as the pull is being closed: all who wait get nothing."""
        for taker in list(self._waiting):
            self._answer(taker, [])

    def _answer(self, taker: Taker, jobs: list[Held]) -> None:
        self._waiting.remove(taker)
        if not taker.future.done():
            taker.future.set_result(jobs)

    # -- the consumer, as claimer and beats know it

    @property
    def busy(self) -> int:
        """Jobs that are held."""
        return len(self.held)

    @property
    def alone(self) -> bool:
        """Whether a job on its last chance is held. It keeps others away for one lease: its caller may have forgotten
        it."""
        if len(self.held) != 1:
            return False
        [held] = self.held.values()
        fresh = asyncio.get_running_loop().time() < held.since + self._leases.lease
        return fresh and held.flush is None and held.leased.lost >= self._last_chance

    def deliver(self, jobs: list[Leased]) -> None:
        """Leased jobs from the claimer."""
        rest = [job for job in jobs if self._may_start(job)]
        for taker in list(self._waiting):
            if not rest:
                return
            if taker.future.done():
                self._waiting.remove(taker)
                continue
            handed, rest = rest[: taker.limit], rest[taker.limit :]
            self._answer(taker, [self._hand_out(job) for job in handed])
        for job in rest:
            self._give_back(job)

    def cancel(self, job_id: JobId) -> None:
        """Its caller is told. What becomes of the job is up to the caller."""
        if (held := self.held.get(job_id)) is not None:
            held.token.request(StopReason.CANCELLED.value)

    def lose(self, job_id: JobId, epoch: int) -> None:
        """This lease is lost. If a release is under way it may have ended the lease itself, and its answer counts."""
        held = self.held.get(job_id)
        if held is None or held.leased.epoch != epoch or held.flush is not None:
            return
        self._leases.drop(job_id, epoch)
        del self.held[job_id]
        _end(held, "its lease was lost")
        self.events.tell(EventKind.LEASE_LOST, held.leased, detail="while it was held")

    def doubt(self, leases: Iterable[tuple[JobId, int]], *, doubtful: bool) -> None:
        """Tell callers whether another holder may have their jobs by now."""
        for job_id, epoch in leases:
            held = self.held.get(job_id)
            if held is not None and held.leased.epoch == epoch:
                held.token.doubtful = doubtful

    def give_back(self, queues: frozenset[str] | None = None) -> None:
        """Nothing waits here that nobody works on."""

    # -- the end of leases

    def forget(self) -> int:
        """Give back all that is held and not released; returns how many jobs that were."""
        kept = [held for held in self.held.values() if held.flush is None]
        for held in kept:
            self._forget(held, "the pull was closed")
        return len(kept)

    def abandon(self) -> None:
        """Nothing more goes to the store. Whoever still waits for a release is told that nobody knows its answer."""
        for held in self.held.values():
            _end(held, "the pull has ended")
            if held.flush is not None and not held.flush.done:
                job_id = UUID(bytes=held.leased.id)
                unknown = "the store had not answered when the pull ended; whether it was stored is unknown"
                held.flush.answer(Unavailable(f"release of job {job_id}: {unknown}"))
        self.held.clear()

    def _forget(self, held: Held, why: str) -> None:
        if not held.gone:
            _end(held, why)
            settlement = self._judge.release(held.leased.id, held.leased.epoch)
            self._settler.add(settlement, self.events.make(EventKind.RELEASED, held.leased, detail=why))

    def _may_start(self, job: Leased) -> bool:
        """Whether the job may be handed out. If not, it is settled here."""
        before = self.held.pop(job.id, None)
        if before is not None:  # its old lease is over, or the job would not have come again
            _end(before, "its lease ran out, and it was claimed again")
            if before.flush is not None and not before.flush.done:
                before.flush.answer(before.refusal)
        if self._leases.over(job.id, job.epoch, self._leases.now()):
            self._give_back(job)
            return False
        if job.begun and at_most_once(job):
            settlement = self._judge.cancelled(job, NOT_AGAIN)
            self._settler.add(settlement, self.events.ended(job, settlement, None, 0.0))
            return False
        return True

    def _hand_out(self, job: Leased) -> Held:
        self.active = asyncio.get_running_loop().time()
        held = self.held[job.id] = Held(job, self.active)
        self.events.started(job)
        return held

    def _give_back(self, job: Leased) -> None:
        settlement = self._judge.release(job.id, job.epoch, unbegun=not job.begun)
        self._settler.add(settlement, self.events.make(EventKind.RELEASED, job, detail="nobody waits for it"))

    def _answered(self, settlement: Settlement, state: JobState | None) -> None:
        """The store has answered a settlement."""
        held = self.held.get(settlement.id)
        if held is None or held.leased.epoch != settlement.epoch:
            return
        del self.held[settlement.id]
        flush = held.flush
        _end(held, "it was released" if state is not None else "its lease was lost before it was released")
        if flush is not None and not flush.done:
            flush.answer(held.refusal if state is None else state)

    def rejected(self, settlement: Settlement, error: Exception) -> None:
        """The store does not take this settlement: the job is held as before, and can be released again."""
        held = self.held.get(settlement.id)
        if held is not None and held.leased.epoch == settlement.epoch and held.flush is not None:
            flush, held.flush = held.flush, None
            flush.answer(error)
        else:
            self._leases.drop(settlement.id, settlement.epoch)


def _end(held: Held, why: str) -> None:
    held.gone = held.gone or why
    if held.flush is None:
        held.token.request(StopReason.LEASE_LOST.value)
