"""Runs handlers: slots that take one leased job after another, and the buffer in front of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from itertools import islice
from typing import Any

from headrace.core.events import EventKind
from headrace.core.tasks import Tasks
from headrace.seam.records import JobId, Leased
from headrace.text import shown
from headrace.worker.attempt import Attempts
from headrace.worker.current import running, saying
from headrace.worker.deadlines import Deadlines
from headrace.worker.kit import Kit
from headrace.worker.slot import Slot, StopReason

log = logging.getLogger("headrace")

_STREAK = 32
"""Jobs that a slot runs before it lets other tasks of the loop run, if their handlers never wait."""
_UNTIL_ABANDONED = 0.5
"""Seconds that a cancelled handler has to end when the worker stops."""

_LEARNING = 0.3
_DOWN = 1.0
"""Seconds until a slot that has ended is started again: not at once, as it may end again and again."""


class Runner:
    """Runs the jobs that the claimer delivers."""

    def __init__(self, attempts: Attempts, kit: Kit) -> None:
        self._attempts = attempts
        self._leases, self._settler, self._bell = kit.leases, kit.settler, kit.bell
        self._slots = kit.settings.worker.concurrency
        self._last_chance = kit.last_chance
        self._buffer: deque[Leased] = deque()
        self._alone = False
        sizes = [handler.batch_size for handler in attempts.handlers.values()]
        self._largest_batch = max(sizes, default=1)
        self._batched = sum(size > 1 for size in sizes) / max(len(sizes), 1)
        self._running: dict[JobId, Slot] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._deadlines = Deadlines()
        self._tasks = Tasks()
        self._drained = asyncio.Event()
        self._drained.set()
        self._clean: Context | None = None
        self._all: list[Slot] = []

    @property
    def busy(self) -> int:
        """Jobs that run right now."""
        return len(self._running)

    @property
    def alive(self) -> int:
        """Slots that can run jobs."""
        return sum(slot.task is not None and not slot.task.done() for slot in self._all)

    @property
    def alone(self) -> bool:
        """Whether a job on its last chance is here. Nothing may be claimed until it has ended."""
        return self._alone

    def companions(self) -> int:
        """How many jobs fill up the batches of this worker, beyond one per slot. Which share of the jobs runs in
        batches is learned from the jobs that came."""
        return int(self._batched * self._slots * (self._largest_batch - 1))

    def start(self) -> None:
        """Bring up the slots."""
        self._clean = copy_context()
        self._clean.run(saying.set, self._leases.say)
        self._all = [Slot() for _ in range(self._slots)]
        for number, slot in enumerate(self._all):
            self._start_slot(slot, number)

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a handler is running in this task."""
        return any(slot.task is task for slot in self._all)

    def deliver(self, jobs: list[Leased]) -> None:
        """Leased jobs from the claimer."""
        self._drained.clear()
        for job in jobs:
            if job.id in self._running:  # its old lease is over, or the job would not have come again
                self._running[job.id].stop(StopReason.LEASE_LOST)
        self._buffer += jobs
        if self._largest_batch > 1:
            batched = sum(1 for job in jobs if self._attempts.batch_size(job.task) > 1) / len(jobs)
            self._batched += _LEARNING * (batched - self._batched)
        self._alone = jobs[0].lost >= self._last_chance
        self._wake(len(jobs))

    # -- from outside

    def cancel(self, job_id: JobId) -> None:
        """Cancel the job, as was asked for. One job of a batch cannot be stopped alone: it ends as its handler says."""
        if (slot := self._running.get(job_id)) is not None:
            if len(slot.jobs) == 1:
                slot.stop(StopReason.CANCELLED)
        elif (leased := self._unbuffer(job_id)) is not None:
            self._attempts.cancel(leased)

    def lose(self, job_id: JobId, epoch: int) -> None:
        """This lease is lost: the store will refuse the outcome. The handler is stopped; that of a batch, when all its
        leases are lost. If the handler may have ended the lease in its own transaction, it goes on, and the store is
        asked later."""
        if not self._leases.current(job_id, epoch) or (job_id, epoch) in self._leases.entrusted:
            return
        self._leases.drop(job_id, epoch)
        if (slot := self._running.get(job_id)) is not None:
            if not any(self._leases.current(job.id, job.epoch) for job in slot.jobs):
                slot.stop(StopReason.LEASE_LOST)
        elif (leased := self._unbuffer(job_id)) is not None:
            self._attempts.events.tell(EventKind.LEASE_LOST, leased, detail="before it was started")

    def doubt(self, leases: Iterable[tuple[JobId, int]], *, doubtful: bool) -> None:
        """Tell handlers whether another worker may have their leases by now, as the store was away for so long."""
        for job_id, epoch in leases:
            slot = self._running.get(job_id)
            if slot is not None and slot.token is not None and self._leases.current(job_id, epoch):
                slot.token.doubtful = doubtful

    def give_back(self, queues: frozenset[str] | None = None) -> None:
        """Give buffered jobs (of these queues) back to the store, each in its old place."""
        for leased in list(self._buffer):
            if queues is None or leased.queue in queues:
                self._unbuffer(leased.id)
                self._attempts.release(leased, begun=False)

    async def drain(self, seconds: float) -> None:
        """Wait for running jobs. Those that have not ended in time are cancelled and given back."""
        try:
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        except TimeoutError:
            for slot in list(self._running.values()):
                slot.stop(StopReason.STOPPING)
            try:
                async with asyncio.timeout(_UNTIL_ABANDONED):
                    await self._drained.wait()
            except TimeoutError:
                self._abandon()

    def _abandon(self) -> None:
        """Give back the jobs of handlers that did not end when cancelled. The store refuses what they still do."""
        for slot in {id(slot): slot for slot in self._running.values()}.values():
            for leased in slot.jobs:
                self._attempts.release(leased, "its handler did not stop")

    async def close(self) -> None:
        """Take down the slots."""
        self._deadlines.close()
        for slot in self._all:
            slot.closing = True
        await self._tasks.close(_UNTIL_ABANDONED)

    def _unbuffer(self, job_id: JobId) -> Leased | None:
        found = next((leased for leased in self._buffer if leased.id == job_id), None)
        if found is not None:
            self._buffer.remove(found)
            self._alone = False
        self._note_drained()
        return found

    # -- slots

    def _start_slot(self, slot: Slot, number: int) -> None:
        if slot.closing:
            return
        assert self._clean is not None
        start = partial(self._tasks.start, self._work(slot, number), f"headrace-slot-{number}")
        slot.task = self._clean.copy().run(start)
        slot.task.add_done_callback(partial(self._slot_ended, slot, number))

    def _slot_ended(self, slot: Slot, number: int, task: asyncio.Task[None]) -> None:
        if slot.task is task and not slot.closing:
            log.error("%s ended; it is started again in %g s", task.get_name(), _DOWN)
            asyncio.get_running_loop().call_later(_DOWN, self._start_slot, slot, number)

    def _wake(self, count: int) -> None:
        while count and self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    def _note_drained(self) -> None:
        if not (self._running or self._buffer):
            self._drained.set()

    async def _work(self, slot: Slot, number: int) -> None:
        loop, buffer, leases, bell = asyncio.get_running_loop(), self._buffer, self._leases, self._bell
        streak = 0
        while True:
            if not buffer:
                streak = 0
                self._attempts.at_ease()
                running.set(())
                future = loop.create_future()
                self._idle.append(future)
                await future
                continue
            leased = buffer.popleft()
            now = leases.now()
            jobs = [leased]
            running.set(jobs)
            before = copy_context()
            if leases.over(leased.id, leased.epoch, now):
                self._attempts.release(leased, "its lease ran out before it was started", begun=False)
            else:
                await self._run(slot, leased, jobs, now)
                if slot.pending:
                    slot.pending = False
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(0)
                if slot.closing:  # it was cancelled when the job had ended, so nobody noticed
                    return
            if leased.lost >= self._last_chance:
                self._alone = False
            bell.ring()
            if not buffer:
                self._note_drained()
            try:
                differs = copy_context() != before
            except BaseException:  # a value in it cannot be compared
                differs = True
            if differs:
                # The handler has changed a context variable: the next job gets a new task with a clean context.
                self._start_slot(slot, number)
                return
            streak += 1
            if streak >= _STREAK:
                streak = 0
                await asyncio.sleep(0)

    async def _run(self, slot: Slot, leased: Leased, jobs: list[Leased], now: float) -> None:
        """Run this job. If its handler takes several, ``jobs`` becomes all of them."""
        deadline = None
        try:
            handler = self._attempts.handlers.get(leased.task)
            if handler is None:
                self._attempts.unknown(leased)
                return
            timeout = handler.timeout if leased.timeout is None else leased.timeout
            self._running[leased.id] = slot
            if handler.batch is not None:
                jobs += self._companions(leased, handler.batch_size - 1)
                self._running.update(dict.fromkeys((job.id for job in jobs), slot))
                timeout = min((job.timeout for job in jobs if job.timeout is not None), default=timeout)
            slot.begin(jobs, now)
            if timeout is not None:
                deadline = self._deadlines.add(timeout / 1e6, partial(slot.stop, StopReason.TIMED_OUT))
            if handler.batch is None:
                await self._attempts.run(slot, handler, leased)
            else:
                await self._attempts.run_batch(slot, handler)
        except BaseException as error:
            if slot.closing or (isinstance(error, GeneratorExit) and slot.abandoned):
                raise
            for job in jobs:
                self._rescue(job, error)
        finally:
            slot.end()
            if deadline is not None:
                self._deadlines.drop(deadline)
            for job in jobs:
                if self._running.get(job.id) is slot:
                    del self._running[job.id]

    def _rescue(self, leased: Leased, error: BaseException) -> None:
        """An error of the worker itself must not end the slot: the job fails. If even that is impossible, its lease
        runs out."""
        if self._settler.has(leased.id, leased.epoch) or not self._leases.current(leased.id, leased.epoch):
            return
        try:
            self._attempts.escaped(leased, error)
        except BaseException:
            job_id, task = leased.id.hex(), shown(leased.task)
            log.exception("the outcome of job %s (%s) is lost; it runs again when its lease has run out", job_id, task)
            self._leases.drop(leased.id, leased.epoch)

    def _companions(self, leased: Leased, count: int) -> list[Leased]:
        """Buffered jobs of the same task, to fill up its batch."""
        now = self._leases.now()
        fit = (job for job in self._buffer if job.task == leased.task and not self._leases.over(job.id, job.epoch, now))
        found = list(islice(fit, count))
        for other in found:
            self._buffer.remove(other)
        return found
