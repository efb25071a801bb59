"""One attempt at a job, step by step: start, load, call, judge, after, conclude.

``run`` is the whole way of one job, ``run_batch`` that of several jobs with one call of their handler. A job that does
not run to its end leaves the way early: it is released, cancelled or refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from headrace.core.alerts import Alert
from headrace.core.events import EventKind
from headrace.core.meter import Meter
from headrace.errors import CodecError, ObjectsUnavailable, PayloadError, UnknownTask
from headrace.payloads.offload import LARGE, any_large
from headrace.schedules.tick_notes import at_most_once
from headrace.seam.records import Leased, Settlement
from headrace.text import shown
from headrace.types import Done, JobState
from headrace.worker.attempt_events import AttemptEvents
from headrace.worker.failures import failures
from headrace.worker.handler import Ended, Ending, Handler, is_outcome
from headrace.worker.job import CancelToken, Completion, Job
from headrace.worker.judge import NOT_AGAIN, OBJECTS_REST, UNSTORABLE, UNUSABLE, unwrap
from headrace.worker.kit import Kit
from headrace.worker.slot import Slot, StopReason

_OUTCOMES = {JobState.COMPLETED: "completed", JobState.FAILED: "dead", JobState.CANCELLED: "cancelled"}
"""What metrics call the end of an attempt, by the state that follows. A job that is paused is ``snoozed``."""


class UnstorableResult(CodecError):
    """A handler wants to complete its job in its own transaction, with a result that cannot be stored."""


class Attempts:
    """Runs leased jobs in slots. Every attempt ends in a settlement, unless the lease is known to be lost."""

    def __init__(self, handlers: Mapping[str, Handler], kit: Kit) -> None:
        self.handlers = handlers
        self.events = AttemptEvents(kit.observers, kit.clock)
        self._kit = kit
        self._judge, self._packer, self._settler = kit.judge, kit.packer, kit.settler
        self._observers = kit.observers

    def batch_size(self, task: str) -> int:
        """How many jobs of the task one call takes at most."""
        handler = self.handlers.get(task)
        return 1 if handler is None else handler.batch_size

    def at_ease(self) -> None:
        """No job waits: there is time to measure the next one."""
        if self._observers.meter is not None:
            self._observers.meter.skip = 0

    async def run(self, slot: Slot, handler: Handler, leased: Leased) -> None:
        """Run the slot's one job."""
        observers = self._observers
        meter = observers.meter
        if meter is not None:
            if meter.skip:
                meter.skip -= 1
                slot.began = 0.0
            else:
                slot.began = perf_counter()
        if (leased.begun or observers.present) and not self._start(leased):
            return
        assert handler.call is not None
        given: Any = None
        usable = False
        try:
            if any_large(leased.cells):
                given = await self._load_large(slot, handler, leased)
            else:
                given = handler.load(leased) if handler.quick else self._load(slot, handler, leased)
            usable = True
            value = await handler.call(given)
        except BaseException as error:  # even SystemExit: it ends the attempt, not the worker
            if self._stopped(slot, [leased], handler, error):
                return
            ended: Ended = error
        else:
            plain = not is_outcome(value)
            if plain and not (handler.after or leased.headers is not None or observers.present):
                # The last steps in short, for most jobs: the long way would make a drain 6 % slower.
                settlement = self._judge.done(leased, handler, value)
                if meter is not None and settlement.state is JobState.COMPLETED:
                    meter.completed(leased, slot.began)
                self._settler.add(await self._compressed(settlement) if _is_large(settlement) else settlement)
                return
            ended = Done(value) if plain else value
        await self._settle(slot, handler, leased, ended, given, usable=usable)

    async def run_batch(self, slot: Slot, handler: Handler) -> None:
        """Run all of the slot's jobs with one call."""
        slot.began = perf_counter()
        started = [leased for leased in slot.jobs if self._start(leased)]
        assert handler.batch is not None
        endings: Sequence[Ended]
        try:
            jobs = await self._load_batch(slot, handler, started)
            endings = await handler.batch(jobs) if jobs else []
        except BaseException as error:
            if self._stopped(slot, started, handler, error):
                return
            endings = [error] * len(started)
        for leased, ended in zip(started, endings, strict=True):
            try:
                await self._settle(slot, handler, leased, ended)
            except BaseException as error:  # the others have outcomes of their own
                if isinstance(error, GeneratorExit) and slot.abandoned:
                    raise
                self.escaped(leased, error)

    # -- the steps

    def _start(self, leased: Leased) -> bool:
        """Tell that the job starts. Returns whether it may."""
        if leased.begun and at_most_once(leased):
            self._conclude(leased, self._judge.cancelled(leased, NOT_AGAIN), None)
            return False
        if self._observers.present:
            self.events.started(leased)
        return True

    def _load(self, slot: Slot, handler: Handler, leased: Leased) -> Any:
        """What the handler is called with: the job, or only its payload if it needs no more."""
        if handler.quick:
            return handler.load(leased)
        return self._job(slot, handler, leased, handler.load(leased), self._packer.sections(leased))

    async def _load_large(self, slot: Slot, handler: Handler, leased: Leased) -> Any:
        """The same, with cells that are opened in a thread."""
        if handler.quick:
            return await asyncio.to_thread(handler.load, leased)

        def opened() -> tuple[Any, dict[str, bytes]]:
            return handler.load(leased), self._packer.sections(leased)

        return self._job(slot, handler, leased, *await asyncio.to_thread(opened))

    async def _load_batch(self, slot: Slot, handler: Handler, started: list[Leased]) -> list[Job[Any]]:
        """The jobs of a batch. A job whose payload cannot be loaded fails, and is removed from ``started``."""
        jobs = []
        for leased in tuple(started):
            try:
                large = any_large(leased.cells)
                job = await self._load_large(slot, handler, leased) if large else self._load(slot, handler, leased)
            except Exception as error:
                started.remove(leased)
                await self._settle(slot, handler, leased, error, usable=False)
            else:
                jobs.append(job)
        return jobs

    async def _settle(
        self, slot: Slot, handler: Handler, leased: Leased, ended: Ended, job: Any = None, *, usable: bool = True
    ) -> None:
        """The last steps, the same for one job and for each of a batch."""
        if isinstance(ended, BaseException):
            ended = (unwrap(ended) or ended) if usable else _unusable(ended)
        settlement = self._judged(leased, handler, ended, usable=usable)
        if handler.after is not None and settlement.state in (JobState.COMPLETED, JobState.FAILED):
            settlement, ended = await self._after(slot, handler, job, leased, ended, settlement)
        if _is_large(settlement):
            settlement = await self._compressed(settlement)
        self._conclude(leased, settlement, ended, slot)

    def _judged(self, leased: Leased, handler: Handler, ended: Ended, *, usable: bool = True) -> Settlement:
        if isinstance(ended, BaseException):
            if not usable:
                return self._judge.refuse(leased, ended, UNUSABLE)
            if isinstance(ended, UnstorableResult):
                return self._judge.refuse(leased, ended, UNSTORABLE)
            if isinstance(ended, ObjectsUnavailable):
                return self._judge.release(leased.id, leased.epoch, delay=OBJECTS_REST)
            return self._judge.raised(leased, handler.retry, ended)
        return self._judge.settle(leased, handler, ended)

    async def _after(
        self, slot: Slot, handler: Handler, job: Job[Any] | None, leased: Leased, ended: Ended, settlement: Settlement
    ) -> tuple[Settlement, Ended]:
        """Let the hook change what is stored. If it fails, the settlement stays as it was."""
        assert handler.after is not None
        error = ended if isinstance(ended, BaseException) else None
        ending = Ending(settlement.state.value, ended.result if isinstance(ended, Done) else None, error)
        try:
            await handler.after(job or self._job(slot, handler, leased, None, self._packer.sections(leased)), ending)
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
            self.events.tell(EventKind.ERROR, leased, error=problem, detail=detail)
        return settlement, ended

    async def _compressed(self, settlement: Settlement) -> Settlement:
        """The settlement with its large result compressed and sealed, in a thread. If a stop comes meanwhile, the
        result is stored uncompressed: the handler has returned by now."""
        assert settlement.result is not None
        try:
            compressed = await asyncio.to_thread(self._packer.compress, settlement.result, settlement.id)
            return replace(settlement, result=compressed)
        except asyncio.CancelledError:
            return self._with_sealed_result(settlement)

    def _conclude(self, leased: Leased, settlement: Settlement, ended: Ended | None, slot: Slot | None = None) -> None:
        """Hand the settlement on, with what observers and schedules are told of it. Without a slot, it never ran."""
        event = None
        if self._observers.meter is not None:
            self._measure(self._observers.meter, leased, settlement, slot)
        if leased.headers is not None or self._observers or settlement.failed_attempt:
            seconds = self._ran(slot) if slot else 0.0
            if leased.headers is not None:
                self._settler.notes.ended(leased, settlement, seconds)
            event = self.events.ended(leased, settlement, ended, seconds)
        self._settler.add(settlement, event)

    def _measure(self, meter: Meter, leased: Leased, settlement: Settlement, slot: Slot | None) -> None:
        if settlement.state is JobState.COMPLETED and slot is not None:
            meter.completed(leased, slot.began)
        else:
            again = "retried" if settlement.failed_attempt else "snoozed"
            meter.ended(leased, _OUTCOMES.get(settlement.state, again), 0.0 if slot is None else slot.began)

    def _ran(self, slot: Slot) -> float:
        return self._kit.clock.elapsed() - slot.started

    # -- what a handler gets

    def _job(self, slot: Slot, handler: Handler, leased: Leased, payload: Any, sections: dict[str, bytes]) -> Job[Any]:
        slot.token = slot.token or CancelToken()
        completion = Completion(
            partial(self._complete, leased, handler, slot.token),
            partial(self._kit.leases.entrusted.withdraw, leased.id, leased.epoch),
        )
        kit = self._kit
        return Job(
            leased,
            payload,
            kit.holder,
            slot.token,
            sections,
            completion,
            kit.reader.read,
            kit.leases.say,
            kit.sender,
            kit.name,
        )

    def _complete(self, leased: Leased, handler: Handler, token: CancelToken, result: Any) -> Settlement | None:
        """The handler is about to complete the job in its own transaction: what it stores. None if the job has been
        given up on."""
        settlement = self._with_sealed_result(self._judge.done(leased, handler, result))
        if settlement.state is not JobState.COMPLETED:
            raise UnstorableResult(failures(settlement.error)[-1].message)
        self._kit.leases.entrusted.add(leased.id, leased.epoch, result)
        # In this order: a stop sets given_up first, then looks at what is entrusted.
        return None if token.given_up else settlement

    def _with_sealed_result(self, settlement: Settlement) -> Settlement:
        if not _is_large(settlement):
            return settlement
        assert settlement.result is not None
        return replace(settlement, result=self._packer.seal_result(settlement.result, settlement.id))

    # -- jobs that do not run to their end

    def _stopped(self, slot: Slot, jobs: list[Leased], handler: Handler, error: BaseException) -> bool:
        """Whether the handler ended because this worker stopped it; if so, its jobs are settled here. If the slot
        itself ends, the error is raised again."""
        if isinstance(error, GeneratorExit) and slot.abandoned:
            raise error
        if isinstance(error, asyncio.CancelledError) and slot.stopped:
            self._settle_stopped(slot, jobs, handler)
            return True
        return False

    def _settle_stopped(self, slot: Slot, jobs: list[Leased], handler: Handler) -> None:
        """Settle jobs whose handler this worker has cancelled. A handler in a thread may still be running."""
        if slot.token is not None:
            slot.token.given_up = True
        for leased in jobs:
            match slot.reason:
                case StopReason.TIMED_OUT:
                    error = TimeoutError(_too_long(self._ran(slot), handler))
                    self._conclude(leased, self._judge.raised(leased, handler.retry, error), error, slot)
                case StopReason.CANCELLED:
                    self._conclude(leased, self._judge.cancelled(leased), None, slot)
                case StopReason.STOPPING:
                    self.release(leased)
                case StopReason.LEASE_LOST:
                    self.events.tell(EventKind.LEASE_LOST, leased, detail="handler cancelled")

    def release(self, leased: Leased, detail: str = "", *, begun: bool = True) -> None:
        """Give the job back, in its old place."""
        settlement = self._judge.release(leased.id, leased.epoch, unbegun=not (begun or leased.begun))
        self._settler.add(settlement, self.events.make(EventKind.RELEASED, leased, detail=detail))

    def cancel(self, leased: Leased) -> None:
        """The job is cancelled before it was started."""
        self._conclude(leased, self._judge.cancelled(leased), None)

    def escaped(self, leased: Leased, error: BaseException) -> None:
        """The job could not be settled, because of an error of the worker itself. It fails with that error."""
        self.events.tell(EventKind.ERROR, leased, error=error, detail=UNSTORABLE)
        event = self.events.make(EventKind.FAILED, leased, error=error, detail=UNSTORABLE)
        self._settler.add(self._judge.refuse(leased, error, UNSTORABLE), event)

    def unknown(self, leased: Leased) -> None:
        """This worker has no handler for the job."""
        known = ", ".join(sorted(self.handlers)) or "none"
        error = UnknownTask(f"this worker knows no task {shown(leased.task)}; it knows: {known}")
        settlement = self._judge.unknown(leased, error)
        if settlement.state is JobState.FAILED:
            self._conclude(leased, settlement, error)
        else:
            event = self.events.make(EventKind.RELEASED, leased, error=error, detail=str(error))
            self._settler.add(settlement, event)
        sentence = f"jobs wait for task {shown(leased.task)}, which this worker does not know"
        self._observers.alert(Alert.UNKNOWN_TASK, leased.task, sentence, queue=leased.queue, task=leased.task)


def _unusable(error: BaseException) -> BaseException:
    """The error with which a job fails whose payload cannot be loaded."""
    if isinstance(error, PayloadError) or not isinstance(error, Exception):
        return error
    problem = CodecError(f"the payload cannot be loaded: {error}")
    problem.__cause__ = error
    return problem


def _is_large(settlement: Settlement) -> bool:
    return settlement.result is not None and len(settlement.result) > LARGE


def _too_long(seconds: float, handler: Handler) -> str:
    if handler.threaded:
        return f"ran longer than its timeout; given up on after {seconds:.3f} s; its thread goes on until it returns"
    return f"ran longer than its timeout; cancelled after {seconds:.3f} s"
