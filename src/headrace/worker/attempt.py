"""One attempt at a job: load it, run its handler, judge what came of it, settle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from headrace.core.alerts import Alert
from headrace.core.clock import Clock
from headrace.core.events import Event, EventKind, Observers
from headrace.errors import CodecError, PayloadError, UnknownTask
from headrace.payloads.offload import LARGE, any_large
from headrace.payloads.pack import Packer
from headrace.schedules.tick_notes import at_most_once, slot_of
from headrace.seam.records import Leased, Settlement
from headrace.text import shown
from headrace.types import OUTCOMES, Done, Fail, JobState, Retry
from headrace.worker.entrusted import Entrusted
from headrace.worker.handler import Ended, Ending, Handler
from headrace.worker.job import CancelToken, Completion, Job
from headrace.worker.judge import UNSTORABLE, Judge, failures, unwrap
from headrace.worker.settler import Settler
from headrace.worker.slot import Slot, StopReason

log = logging.getLogger("headrace")

_UNUSABLE = "payload cannot be used"
_NOT_AGAIN = "not started again: at most once"


class _Unstorable(CodecError):
    """The result with which a handler would complete its job in a transaction of its own."""


class Attempts:
    """Runs leased jobs in slots; every attempt ends in a settlement, unless the lease is known to be lost."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        judge: Judge,
        packer: Packer,
        settler: Settler,
        entrusted: Entrusted,
        observers: Observers,
        clock: Clock,
        holder: str,
    ) -> None:
        self.handlers = handlers
        self._judge = judge
        self._packer = packer
        self._settler = settler
        self._entrusted = entrusted
        self._observers = observers
        self._clock = clock
        self._holder = holder

    def batch_size(self, task: str) -> int:
        """How many jobs of the task one call takes at most."""
        handler = self.handlers.get(task)
        return 1 if handler is None else handler.batch_size

    def unknown(self, leased: Leased) -> None:
        """There is no handler for this job here."""
        known = ", ".join(sorted(self.handlers)) or "none"
        error = UnknownTask(f"this worker knows no task {shown(leased.task)}; it knows: {known}")
        settlement = self._judge.unknown(leased, error)
        if settlement.state is JobState.FAILED:
            self._conclude(leased, settlement, error)
        else:
            news = _event(EventKind.RELEASED, leased, error=error, detail=str(error)) if self._observers else None
            self._settler.add(settlement, news)
        sentence = f"jobs wait for task {shown(leased.task)}, which this worker does not know"
        self._observers.alert(Alert.UNKNOWN_TASK, leased.task, sentence, queue=leased.queue, task=leased.task)

    async def run(self, slot: Slot, handler: Handler) -> None:
        """Run the slot's one job: start it, load it, call its handler, judge what came of it, settle."""
        [leased] = slot.jobs
        observed = self._observers.present
        if (leased.begun or observed) and not self._start(leased):
            return
        job: Job[Any] | None = None
        sections = None
        usable = False
        try:
            for cell in leased.cells.values():  # any_large, but this is the hot path: no call
                if len(cell) > LARGE:
                    payload, sections = await self._load_large(handler, leased)
                    break
            else:
                payload = handler.load(leased)
            if handler.quick is not None:
                usable = True
                value = await handler.quick(payload)
            else:
                job = self._job(slot, handler, leased, payload, sections)
                usable = True
                assert handler.call is not None
                value = await handler.call(job)
        except BaseException as error:  # a handler that wants to leave leaves alone: the worker stays
            if self._stopped(slot, [leased], handler, error):
                return
            ended: Ended = unwrap(error) or error if usable else _unusable(error)
        else:
            if not (isinstance(value, OUTCOMES) or handler.after or observed or leased.headers is not None):
                settlement = self._judge.done(leased, handler, value)
                self._settler.add(settlement if settlement.result is None else await self._compressed(settlement))
                return
            ended = value if isinstance(value, OUTCOMES) else Done(value)
        settlement = self._judged(leased, handler, ended, usable=usable)
        if handler.after is not None and settlement.state in (JobState.COMPLETED, JobState.FAILED):
            settlement, ended = await self._after(slot, handler, job, leased, ended, settlement)
        self._conclude(leased, await self._compressed(settlement), ended, slot)

    async def run_batch(self, slot: Slot, handler: Handler) -> None:
        """Run all of the slot's jobs with one call."""
        started = [leased for leased in slot.jobs if self._start(leased)]
        assert handler.batch is not None
        endings: Sequence[Ended]
        try:
            jobs = await self._jobs(slot, handler, started)
            endings = await handler.batch(jobs) if jobs else []
        except BaseException as error:
            if self._stopped(slot, started, handler, error):
                return
            endings = [error] * len(started)
        for leased, ended in zip(started, endings, strict=True):
            try:
                outcome = unwrap(ended) or ended if isinstance(ended, BaseException) else ended
                settlement = await self._compressed(self._judged(leased, handler, outcome))
                self._conclude(leased, settlement, outcome, slot)
            except BaseException as error:  # the others have outcomes of their own
                if isinstance(error, GeneratorExit) and slot.abandoned:
                    raise
                self.escaped(leased, error)

    def _start(self, leased: Leased) -> bool:
        """Tell that the job starts; whether it may."""
        if leased.begun and at_most_once(leased):
            self._conclude(leased, self._judge.cancelled(leased, _NOT_AGAIN), None)
            return False
        if self._observers:
            self.tell(EventKind.STARTED, leased, seconds=self._waited(leased), detail=slot_of(leased))
        return True

    def _stopped(self, slot: Slot, jobs: list[Leased], handler: Handler, error: BaseException) -> bool:
        """Whether the handler ended because this worker stopped it; its jobs are settled then. A slot that is being
        thrown away raises the error."""
        if isinstance(error, GeneratorExit) and slot.abandoned:
            raise error
        if isinstance(error, asyncio.CancelledError) and slot.stopped:
            self._settle_stopped(slot, jobs, handler)
            return True
        return False

    async def _load_large(self, handler: Handler, leased: Leased) -> tuple[Any, dict[str, bytes] | None]:
        """Payload and sections, opened in a thread."""

        def opened() -> tuple[Any, dict[str, bytes]]:
            return handler.load(leased), self._packer.sections(leased.cells)

        return await asyncio.to_thread(opened)

    async def _jobs(self, slot: Slot, handler: Handler, started: list[Leased]) -> list[Job[Any]]:
        """The jobs of a batch as its handler sees them. A job whose payload cannot be loaded fails, and is removed from
        ``started``."""
        jobs = []
        for leased in tuple(started):
            try:
                if any_large(leased.cells):
                    jobs.append(self._job(slot, handler, leased, *await self._load_large(handler, leased)))
                else:
                    jobs.append(self._job(slot, handler, leased, handler.load(leased)))
            except Exception as problem:
                error = _unusable(problem)
                started.remove(leased)
                self._conclude(leased, self._judged(leased, handler, error, usable=False), error, slot)
        return jobs

    async def _compressed(self, settlement: Settlement) -> Settlement:
        """The settlement with a large result compressed, in a thread. The handler has returned by now: if a stop comes
        meanwhile, the result is stored uncompressed."""
        if settlement.result is None or len(settlement.result) <= LARGE:
            return settlement
        try:
            return replace(settlement, result=await asyncio.to_thread(self._packer.compress, settlement.result))
        except asyncio.CancelledError:
            return settlement

    def _job(
        self,
        slot: Slot,
        handler: Handler,
        leased: Leased,
        payload: Any,
        sections: dict[str, bytes] | None = None,
    ) -> Job[Any]:
        slot.token = slot.token or CancelToken()
        if sections is None:
            sections = self._packer.sections(leased.cells)
        completion = Completion(
            partial(self._complete, leased, handler, slot.token),
            partial(self._entrusted.withdraw, leased.id, leased.epoch),
        )
        return Job(leased, payload, self._holder, slot.token, sections, completion)

    def _complete(self, leased: Leased, handler: Handler, token: CancelToken, result: Any) -> Settlement | None:
        """The handler completes the job itself, in a transaction of its own; not if it has been given up on."""
        settlement = self._judge.done(leased, handler, result)
        if settlement.state is not JobState.COMPLETED:
            raise _Unstorable(failures(settlement.error)[-1].message)
        self._entrusted.add(leased.id, leased.epoch, result)
        # In this order: a stop sets given_up first, then looks at what is entrusted.
        return None if token.given_up else settlement

    def _judged(self, leased: Leased, handler: Handler, ended: Ended, *, usable: bool = True) -> Settlement:
        if isinstance(ended, BaseException):
            if not usable:
                return self._judge.refuse(leased, ended, _UNUSABLE)
            if isinstance(ended, _Unstorable):
                return self._judge.refuse(leased, ended, UNSTORABLE)
            return self._judge.raised(leased, handler.retry, ended)
        return self._judge.settle(leased, handler, ended)

    async def _after(
        self,
        slot: Slot,
        handler: Handler,
        job: Job[Any] | None,
        leased: Leased,
        ended: Ended,
        settlement: Settlement,
    ) -> tuple[Settlement, Ended]:
        """Let the hook change what is stored; if it fails, what was to be stored is stored."""
        assert handler.after is not None
        error = ended if isinstance(ended, BaseException) else None
        ending = Ending(settlement.state.value, ended.result if isinstance(ended, Done) else None, error)
        try:
            await handler.after(job or self._job(slot, handler, leased, None), ending)
            if isinstance(ended, Done):
                ttl = ended.result_ttl if ending.result_ttl is None else ending.result_ttl
                done = Done(ending.result, ttl, ended.patch, ended.spawn)
                changed = self._judge.settle(leased, handler, done)
                if changed.state is JobState.COMPLETED:
                    return changed, done
                raise ValueError("the result or result_ttl that the hook set cannot be stored")
            if ending.error is not None and ending.error is not error:
                return self._judge.refuse(leased, ending.error, settlement.reason), ending.error
        except BaseException as problem:
            if isinstance(problem, GeneratorExit) and slot.abandoned:
                raise
            cut_short = isinstance(problem, asyncio.CancelledError) and slot.stopped
            detail = "the after hook was cut short" if cut_short else "the after hook failed"
            self.tell(EventKind.ERROR, leased, error=problem, detail=detail)
        return settlement, ended

    def _settle_stopped(self, slot: Slot, jobs: list[Leased], handler: Handler) -> None:
        """Settle jobs whose handler this worker has cancelled. A handler in a thread may still be running."""
        if slot.token is not None:
            slot.token.given_up = True
        for leased in jobs:
            match slot.reason:
                case StopReason.TIMED_OUT:
                    error = TimeoutError(_too_long(slot, handler))
                    self._conclude(leased, self._judge.raised(leased, handler.retry, error), error, slot)
                case StopReason.CANCELLED:
                    self._conclude(leased, self._judge.cancelled(leased), None, slot)
                case StopReason.STOPPING:
                    self.release(leased)
                case StopReason.LEASE_LOST:
                    self.tell(EventKind.LEASE_LOST, leased, detail="handler cancelled")

    # -- telling

    def _waited(self, leased: Leased) -> float:
        """Seconds since it was due, by this process's clock."""
        return max(0.0, (self._clock.now() - leased.run_at) / 1e6)

    def _conclude(self, leased: Leased, settlement: Settlement, ended: Ended | None, slot: Slot | None = None) -> None:
        if leased.headers is not None:
            self._settler.notes.ended(leased, settlement, _ran(slot) if slot else 0.0)
        if not self._observers:
            self._settler.add(settlement)
            return
        match settlement.state:
            case JobState.COMPLETED:
                kind = EventKind.COMPLETED
            case JobState.FAILED:
                kind = EventKind.FAILED
            case JobState.CANCELLED:
                kind = EventKind.CANCELLED
            case _:
                kind = EventKind.RETRYING if settlement.failed_attempt else EventKind.SNOOZED
        news = _event(
            kind,
            leased,
            error=ended if isinstance(ended, BaseException) else None,
            detail=ended.error if isinstance(ended, Fail | Retry) else settlement.reason,
            result=ended.result if isinstance(ended, Done) else None,
            seconds=_ran(slot) if slot else 0.0,
        )
        self._settler.add(settlement, news)

    def release(self, leased: Leased, detail: str = "", *, begun: bool = True) -> None:
        """Give the job back unfinished, to its old place."""
        news = _event(EventKind.RELEASED, leased, detail=detail) if self._observers else None
        self._settler.add(self._judge.release(leased, unbegun=not (begun or leased.begun)), news)

    def cancel(self, leased: Leased) -> None:
        """The job is cancelled before it was started."""
        self._conclude(leased, self._judge.cancelled(leased), None)

    def escaped(self, leased: Leased, error: BaseException) -> None:
        """An error of the worker itself kept this job's outcome from being settled: the job fails with that error."""
        self.tell(EventKind.ERROR, leased, error=error, detail=UNSTORABLE)
        news = _event(EventKind.FAILED, leased, error=error, detail=UNSTORABLE) if self._observers else None
        self._settler.add(self._judge.refuse(leased, error, UNSTORABLE), news)

    def tell(self, kind: EventKind, leased: Leased, **more: Any) -> None:
        """Tell observers that something happened to this job. Without observers, an error is logged."""
        if self._observers:
            self._observers.tell(_event(kind, leased, **more))
        elif kind is EventKind.ERROR:
            log.error("%s: %s", shown(leased.task or leased.queue), more.get("detail"), exc_info=more.get("error"))


def _event(kind: EventKind, leased: Leased, **more: Any) -> Event:
    return Event(kind, leased.id, leased.queue, leased.task, leased.key, leased.attempt, **more)


def _unusable(error: BaseException) -> BaseException:
    """What a job fails with whose payload cannot be loaded."""
    if isinstance(error, PayloadError) or not isinstance(error, Exception):
        return error
    problem = CodecError(f"the payload cannot be loaded: {error}")
    problem.__cause__ = error
    return problem


def _too_long(slot: Slot, handler: Handler) -> str:
    if handler.threaded:
        return f"ran longer than its timeout; given up on after {_ran(slot):.3f} s; its thread goes on until it returns"
    return f"ran longer than its timeout; cancelled after {_ran(slot):.3f} s"


def _ran(slot: Slot) -> float:
    return asyncio.get_running_loop().time() - slot.started
