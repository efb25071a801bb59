"""The stage that runs handlers: long-lived slots that take the next leased job, run it, and hand on its outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from random import Random
from typing import Any

from headrace.core.deadlines import Deadlines
from headrace.core.events import Event, EventKind, Observers
from headrace.core.handler import Ending, Handler
from headrace.core.judge import OUTCOMES, Judge, unwrap
from headrace.core.leases import Leases
from headrace.core.payloads import Packer
from headrace.core.retry import RetryPolicy, exponential
from headrace.core.settler import Settler
from headrace.core.tasks import Tasks
from headrace.errors import PayloadError, UnknownTask
from headrace.job import CancelToken, Job
from headrace.records import JobId, Leased, Settlement
from headrace.types import Done, Fail, JobState, Outcome, Retry

_STREAK = 32
"""Jobs that a slot runs before it lets the loop breathe, if their handlers never wait."""
_UNKNOWN = exponential(10, base="10s", cap="10m")
"""A task that this worker does not know may be known to the next deployment: try for a while."""

TIMED_OUT, CANCEL, LOST, STOPPING = "timed out", "cancelled", "lease lost", "worker stopping"


class Slot:
    """One place to run a job in."""

    __slots__ = ("deadline", "jobs", "reason", "started", "task", "token")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.jobs: list[Leased] = []
        self.token: CancelToken | None = None
        self.reason = ""
        self.deadline: int | None = None
        self.started = 0.0

    def stop(self, reason: str) -> None:
        """Ask the handler to end; the first reason stays."""
        if self.jobs and not self.reason:
            self.reason = reason
            if self.token is not None:
                self.token.request(reason)
            if self.task is not None:
                self.task.cancel(reason)


class Runner:
    """Slots and the buffer before them.

    A job on its last chance (``lost`` at the limit) is run only when nothing else runs in this process, and keeps
    others waiting until it is done: if the worker dies again, the blame is certain.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        judge: Judge,
        packer: Packer,
        settler: Settler,
        leases: Leases,
        observers: Observers,
        rng: Random,
        *,
        holder: str,
        slots: int,
        max_lost: int,
        nudge: Callable[[], None],
    ) -> None:
        self._handlers = handlers
        self._judge = judge
        self._packer = packer
        self._settler = settler
        self._leases = leases
        self._observers = observers
        self._rng = rng
        self._holder = holder
        self._max_lost = max_lost
        self._nudge = nudge
        self._buffer: deque[Leased] = deque()
        self._suspect: Leased | None = None
        self._running: dict[JobId, Slot] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._deadlines = Deadlines()
        self._tasks = Tasks()
        self._clean: Context | None = None
        self._slots = slots
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def busy(self) -> int:
        """Jobs that run right now."""
        return len(self._running)

    def start(self) -> None:
        """Bring up the slots."""
        self._clean = copy_context()
        for number in range(self._slots):
            self._start_slot(Slot(), number)

    def deliver(self, jobs: list[Leased]) -> None:
        """Leased jobs from the claimer."""
        self._drained.clear()
        for leased in jobs:
            if leased.lost < max(self._max_lost, 1):
                self._buffer.append(leased)
            elif self._suspect is None:
                self._suspect = leased
            else:
                apart = 1 + self._rng.random() * len(jobs) * 0.05
                self._settler.add(self._judge.release(leased, delay=int(apart * 1e6)))
        self._wake(len(jobs))

    # -- from outside

    def cancel(self, job_id: JobId) -> None:
        """Its cancellation was asked for."""
        if (slot := self._running.get(job_id)) is not None:
            if len(slot.jobs) == 1:
                slot.stop(CANCEL)
        elif (leased := self._unbuffer(job_id)) is not None:
            self._settler.add(self._judge.cancelled(leased))

    def lose(self, job_id: JobId) -> None:
        """Its lease is gone: whatever it does from now on will be refused."""
        self._leases.drop(job_id)
        if (slot := self._running.get(job_id)) is not None:
            if len(slot.jobs) == 1:
                slot.stop(LOST)
        else:
            self._unbuffer(job_id)

    def give_back(self, queues: frozenset[str] | None = None) -> None:
        """Return buffered jobs (of these queues) to the store, each to its old place."""
        returned = [leased for leased in self._buffer if queues is None or leased.queue in queues]
        if self._suspect is not None and (queues is None or self._suspect.queue in queues) and not self._running:
            returned.append(self._suspect)
        for leased in returned:
            self._unbuffer(leased.id)
            self._settler.add(self._judge.release(leased))
            self._tell(EventKind.RELEASED, leased)

    async def drain(self, seconds: float) -> None:
        """Wait for running jobs; those that are not done in time are cancelled and go back to the queue."""
        try:
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        except TimeoutError:
            for slot in {id(slot): slot for slot in self._running.values()}.values():
                slot.stop(STOPPING)
            await self._drained.wait()

    async def close(self) -> None:
        """Take down the slots."""
        self._deadlines.close()
        await self._tasks.close()

    def _unbuffer(self, job_id: JobId) -> Leased | None:
        if self._suspect is not None and self._suspect.id == job_id:
            found, self._suspect = self._suspect, None
            self._wake(self._slots)
            self._note_drained()
            return found
        for leased in self._buffer:
            if leased.id == job_id:
                self._buffer.remove(leased)
                self._note_drained()
                return leased
        return None

    # -- slots

    def _start_slot(self, slot: Slot, number: int) -> None:
        assert self._clean is not None
        context = self._clean.copy()
        slot.task = context.run(self._tasks.start, self._work(slot, number), f"headrace-slot-{number}")

    def _wake(self, count: int) -> None:
        while count and self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    def _note_drained(self) -> None:
        if not (self._running or self._buffer or self._suspect):
            self._drained.set()

    def _next(self) -> Leased | None:
        """The job that a free slot may start now."""
        if self._suspect is not None:
            if self._running:
                return None
            suspect, self._suspect = self._suspect, None
            return suspect
        return self._buffer.popleft() if self._buffer else None

    async def _work(self, slot: Slot, number: int) -> None:
        streak = 0
        clean = copy_context()
        loop = asyncio.get_running_loop()
        while True:
            alone = self._suspect is not None
            leased = self._next() if not self._quarantine else None
            if leased is None:
                streak = 0
                future = loop.create_future()
                self._idle.append(future)
                await future
                continue
            if self._leases.over(leased.id, loop.time()):
                self._leases.drop(leased.id)
                self._tell(EventKind.LEASE_LOST, leased, detail="ran out before the job was started")
                self._note_drained()
                continue
            self._quarantine = alone
            await self._run(slot, leased)
            if alone:
                self._quarantine = False
                self._wake(self._slots)
            self._nudge()
            self._note_drained()
            if self._suspect is not None and not self._running:
                self._wake(1)
            if copy_context() != clean:
                # The handler left something in the context: the next job gets a slot without it.
                self._start_slot(slot, number)
                return
            streak += 1
            if streak >= _STREAK:
                streak = 0
                await asyncio.sleep(0)

    _quarantine = False
    """Whether a job on its last chance is running, and so nothing else may start."""

    async def _run(self, slot: Slot, leased: Leased) -> None:
        handler = self._handlers.get(leased.task)
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            error = UnknownTask(f"this worker knows no task {leased.task!r}; it knows: {known}")
            self._conclude([leased], [self._judge.raised(leased, _UNKNOWN, error)], error)
            return
        jobs = [leased]
        if handler.batch is not None:
            jobs += self._companions(leased, handler.batch_size - 1)
        slot.jobs, slot.reason, slot.token = jobs, "", None
        for job in jobs:
            self._running[job.id] = slot
        timeout = handler.timeout if leased.timeout is None else leased.timeout
        if timeout is not None:
            slot.deadline = self._deadlines.add(timeout / 1e6, lambda: slot.stop(TIMED_OUT))
        slot.started = asyncio.get_running_loop().time()
        try:
            if handler.batch is not None:
                await self._run_batch(slot, handler)
            else:
                await self._run_one(slot, leased, handler)
        finally:
            slot.jobs = []
            if slot.deadline is not None:
                self._deadlines.drop(slot.deadline)
                slot.deadline = None
            for job in jobs:
                del self._running[job.id]

    def _companions(self, leased: Leased, count: int) -> list[Leased]:
        """Buffered jobs of the same task, for a handler of many."""
        found = [other for other in self._buffer if other.task == leased.task][:count]
        for other in found:
            self._buffer.remove(other)
        return found

    async def _run_one(self, slot: Slot, leased: Leased, handler: Handler) -> None:
        observed = bool(self._observers)
        if observed:
            self._tell(EventKind.STARTED, leased)
        job: Job[Any] | None = None
        try:
            payload = handler.load(leased)
            if handler.quick is not None:
                value = await handler.quick(payload)
            else:
                job = self._job(slot, leased, payload)
                assert handler.call is not None
                value = await handler.call(job)
        except asyncio.CancelledError:
            self._settle_cancelled(slot, [leased], handler.retry)
            return
        except PayloadError as error:
            ending: Outcome | BaseException = error
        except Exception as error:
            ending = unwrap(error) or error
        else:
            if handler.after is None and not observed and not isinstance(value, OUTCOMES):
                self._settler.add(self._judge.done(leased, handler, value))
                return
            ending = value if isinstance(value, OUTCOMES) else Done(value)
        self._uncancel(slot)
        settlement = self._judged(leased, handler, ending)
        if handler.after is not None and settlement.state.terminal:
            job = job or self._job(slot, leased, None)
            settlement = await self._after(handler, job, leased, ending, settlement)
        self._conclude([leased], [settlement], ending)

    def _judged(self, leased: Leased, handler: Handler, ending: Outcome | BaseException) -> Settlement:
        if isinstance(ending, PayloadError):
            return self._judge.refuse(leased, ending, "payload cannot be read")
        if isinstance(ending, BaseException):
            return self._judge.raised(leased, handler.retry, ending)
        return self._judge.settle(leased, handler, ending)

    async def _run_batch(self, slot: Slot, handler: Handler) -> None:
        good: list[Leased] = []
        jobs: list[Job[Any]] = []
        for leased in slot.jobs:
            self._tell(EventKind.STARTED, leased)
            try:
                jobs.append(self._job(slot, leased, handler.load(leased)))
                good.append(leased)
            except PayloadError as error:
                self._conclude([leased], [self._judge.refuse(leased, error, "payload cannot be read")], error)
        if not jobs:
            return
        assert handler.batch is not None
        try:
            answers = await handler.batch(jobs)
            outcomes = [None] * len(jobs) if answers is None else list(answers)
            if len(outcomes) != len(jobs):
                raise ValueError(
                    f"a batch handler returns one outcome per job: expected {len(jobs)}, got {len(outcomes)}"
                )
        except asyncio.CancelledError:
            self._settle_cancelled(slot, good, handler.retry)
        except Exception as error:
            self._conclude(good, [self._judged(leased, handler, unwrap(error) or error) for leased in good], error)
        else:
            for leased, answer in zip(good, outcomes, strict=True):
                ending = answer if isinstance(answer, OUTCOMES) else Done(answer)
                self._conclude([leased], [self._judged(leased, handler, ending)], ending)
        self._uncancel(slot)

    def _job(self, slot: Slot, leased: Leased, payload: Any) -> Job[Any]:
        slot.token = slot.token or CancelToken()
        return Job(leased, payload, self._holder, slot.token, self._packer.sections(leased.cells))

    async def _after(
        self, handler: Handler, job: Job[Any], leased: Leased, ending: Outcome | BaseException, settlement: Settlement
    ) -> Settlement:
        """Let the hook change what is stored; if it fails, what was to be stored is stored."""
        assert handler.after is not None
        completed = settlement.state is JobState.COMPLETED
        error = ending if isinstance(ending, BaseException) else None
        given = Ending(settlement.state.value, ending.result if isinstance(ending, Done) else None, error)
        try:
            await handler.after(job, given)
            if completed:
                assert isinstance(ending, Done)
                ttl = ending.result_ttl if given.result_ttl is None else given.result_ttl
                changed = Done(given.result, ttl, ending.patch, ending.spawn)
                return self._judge.settle(leased, handler, changed)
            if given.error is not error and given.error is not None:
                return self._judge.refuse(leased, given.error, settlement.reason)
        except Exception as problem:
            self._tell(EventKind.ERROR, leased, error=problem, detail="the after hook raised")
        return settlement

    def _settle_cancelled(self, slot: Slot, jobs: list[Leased], retry: RetryPolicy) -> None:
        """The handler was cancelled: by us, for a reason that we know, or along with the whole worker."""
        if not slot.reason:
            raise asyncio.CancelledError
        self._uncancel(slot)
        for leased in jobs:
            match slot.reason:
                case "timed out":
                    error = TimeoutError(f"ran longer than its timeout; cancelled after {self._ran(slot):.3f} s")
                    self._conclude([leased], [self._judge.raised(leased, retry, error)], error)
                case "cancelled":
                    self._conclude([leased], [self._judge.cancelled(leased)], None)
                case "worker stopping":
                    self._settler.add(self._judge.release(leased))
                    self._tell(EventKind.RELEASED, leased)
                case _:
                    self._tell(EventKind.LEASE_LOST, leased, detail="handler cancelled")

    def _uncancel(self, slot: Slot) -> None:
        task = slot.task
        while task is not None and task.cancelling():
            task.uncancel()

    # -- telling

    def _conclude(
        self, jobs: list[Leased], settlements: list[Settlement], ending: Outcome | BaseException | None
    ) -> None:
        for leased, settlement in zip(jobs, settlements, strict=True):
            self._settler.add(settlement)
            if self._observers:
                self._tell_ending(leased, settlement, ending)

    def _tell_ending(self, leased: Leased, settlement: Settlement, ending: Outcome | BaseException | None) -> None:
        error = ending if isinstance(ending, BaseException) else None
        match settlement.state:
            case JobState.COMPLETED:
                kind = EventKind.COMPLETED
            case JobState.FAILED:
                kind = EventKind.FAILED
            case JobState.CANCELLED:
                kind = EventKind.CANCELLED
            case _:
                kind = EventKind.RETRYING if settlement.failed_attempt else EventKind.SNOOZED
        detail = ending.error if isinstance(ending, Fail | Retry) else settlement.reason
        result = ending.result if isinstance(ending, Done) else None
        self._tell(kind, leased, error=error, detail=detail, result=result)

    def _ran(self, slot: Slot) -> float:
        return asyncio.get_running_loop().time() - slot.started

    def _tell(self, kind: EventKind, leased: Leased, **more: Any) -> None:
        if self._observers:
            slot = self._running.get(leased.id)
            seconds = self._ran(slot) if slot is not None and kind is not EventKind.STARTED else 0.0
            self._observers.tell(
                Event(kind, leased.id, leased.queue, leased.task, leased.key, leased.attempt, seconds=seconds, **more)
            )
