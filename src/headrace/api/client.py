"""The client: what every facade holds. Enqueue, look, wait, change; and start workers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from random import Random
from typing import Any
from uuid import UUID
from weakref import WeakSet

from msgspec.structs import replace

from headrace.api.background import runs_here
from headrace.api.info import DETAILS, JobInfo, job_info
from headrace.api.job_errors import raise_unless_completed
from headrace.api.loop_guard import needs_loop
from headrace.api.waiter import Waiter
from headrace.api.why import Circumstances, Why, explain
from headrace.core import validation
from headrace.core.batcher import Batcher
from headrace.core.clock import Clock, SystemClock
from headrace.core.config import PayloadSettings, Settings
from headrace.core.durations import micros
from headrace.core.event_log import log_event
from headrace.core.events import Event, EventKind, Observers
from headrace.core.feed import Feed
from headrace.core.ids import IdMaker, seeded_by_system
from headrace.core.names import check_name, worker_name
from headrace.core.patience import Patience
from headrace.core.slow_calls import timed
from headrace.core.tasks import Tasks
from headrace.core.upkeep import OBJECTS
from headrace.core.validation import AnyId as AnyId
from headrace.errors import ConfigError, InvalidJob, JobNotFound, Unavailable, WaitTimeout
from headrace.keeping.budget import BudgetWatch
from headrace.limits.gate import Admission, Gate
from headrace.limits.rates import check_lasts
from headrace.payloads.object_url import parse
from headrace.payloads.objects import Objects
from headrace.payloads.pack import Packer
from headrace.payloads.stowage import Stowage
from headrace.schedules.planner import IntervalFunction
from headrace.seam import records as r
from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend, Transactions
from headrace.seam.references import is_reference
from headrace.text import shown
from headrace.tracking.planner import MakeRow
from headrace.types import Duration, JobState, NewJob
from headrace.worker.exchange import Exchange
from headrace.worker.handler import Handler
from headrace.worker.helper import Helped, Helper
from headrace.worker.judge import failures
from headrace.worker.pull import Pull
from headrace.worker.strays import Strays
from headrace.worker.worker import Worker

_settling = threading.Lock()
"""Held for a moment while a client finds its home."""


def _after_fork() -> None:
    """Another thread of the parent may have held it."""
    global _settling
    _settling = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


Sending = Callable[[Sequence[NewJob]], AbstractContextManager[list[NewJob]]]


class JobCalls:
    """What can be asked and changed of one job: on a client, and on an app."""

    def _access(self) -> Client:
        raise NotImplementedError

    async def get(self, job_id: AnyId | r.JobKey) -> JobInfo:
        """Everything that is known about a job. Raises ``JobNotFound``."""
        client = self._access()
        record = await client.fetch(job_id)
        if record is None:
            raise _not_found(job_id)
        return job_info(record, client.packer.envelope)

    async def why(self, job_id: AnyId | r.JobKey) -> Why:
        """In one sentence, why the job is not running, as far as the store can tell. Raises ``JobNotFound``."""
        client = self._access()
        policies, now, stamp = (await client.backend()).policies, await client.store_now(), client.clock.stamp()
        record = await client.fetch(job_id, frozenset({"error"}))
        if record is None:
            raise _not_found(job_id)
        queue, told = record.queue, failures(record.error)
        stats, last_chance = await client.stats([queue]), max(client.settings.worker.max_lost, 1)
        seen = Circumstances(record, stats, now, failure=told[-1] if told else None, last_chance=last_chance)
        if policies is not None and record.state is JobState.AVAILABLE:
            states = await policies.find([queue], stamp)
            tenants = await policies.tenants(queue, [record.tenant], at=stamp)
            group = None if record.group is None else await policies.group(queue, record.group)
            seen = replace(seen, policy=next(iter(states), None), tenant=next(iter(tenants), None), group=group)
        return explain(seen)

    @needs_loop("SyncApp(app).cancel(id)")
    async def cancel(self, job_id: AnyId | r.JobKey) -> JobState:
        """Cancel a waiting job, or ask a running one to stop. Returns its state: CANCELLED, RUNNING (it has been
        asked), or the one in which it had ended. Raises ``JobNotFound``."""
        return await self._alter_one(job_id, r.Cancel())

    @needs_loop("SyncApp(app).reschedule(id)")
    async def reschedule(
        self, job_id: AnyId | r.JobKey, *, delay: Duration | None = None, at: datetime | None = None
    ) -> JobState:
        """Make a waiting job due after ``delay``, or at ``at``; with neither, now. Returns its state: AVAILABLE or
        PAUSED if it was rescheduled; in any other state it stays as it is. Raises ``JobNotFound``."""
        if at is not None and delay is not None:
            raise InvalidJob("expected delay or at, got both")
        if at is not None:
            return await self._alter_one(job_id, r.Reschedule(run_at=self._access().packer.instant(at, "at")))
        return await self._alter_one(job_id, r.Reschedule(0 if delay is None else micros(delay, "delay")))

    @needs_loop("SyncApp(app).pause_job(id)")
    async def pause_job(self, job_id: AnyId | r.JobKey) -> JobState:
        """Keep a waiting job from running until it is resumed. Returns its state. Raises ``JobNotFound``."""
        return await self._alter_one(job_id, r.Pause())

    @needs_loop("SyncApp(app).resume_job(id)")
    async def resume_job(self, job_id: AnyId | r.JobKey) -> JobState:
        """Let a paused job go on, due when it was before. Returns its state. Raises ``JobNotFound``."""
        return await self._alter_one(job_id, r.Resume())

    async def _alter_one(self, job_id: AnyId | r.JobKey, change: r.Change) -> JobState:
        name = validation.check_which(job_id)
        sel = r.Selector(keys=[name]) if isinstance(name, r.JobKey) else r.Selector(ids=[name])
        altered = await self._access().alter(sel, change)
        if not altered or altered[0].after is None:
            raise _not_found(job_id)
        return altered[0].after


class Client(JobCalls):
    """A connection to one store. Usable from one event loop at a time; opens itself on first use.

    >>> import asyncio
    >>> from headrace import NewJob, connect
    >>> async def main():
    ...     async with connect("memory://") as client:
    ...         [answer] = await client.insert([NewJob(task="mail", args={"to": "a@b.c"})])
    ...         return answer.status.value
    >>> asyncio.run(main())
    'new'
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
        heartbeat_thread: bool = True,
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.observers = Observers(log_event)
        self._given_rng = rng
        self._make_packer = _packer_maker(settings.payloads)
        self._location = None if settings.objects.url is None else parse(settings.objects.url)
        self._stowage: Stowage | None = None
        self._feed: Feed | None = None
        self.sending: Sending | None = None
        """Encloses every enqueue, and may mark its jobs; for traces."""
        self._heartbeat_thread = heartbeat_thread
        self.guest = False
        """Whether its workers leave the duties to other workers and their settings."""
        self.helper: Helper | None = None
        """Runs jobs on their last chance for its workers."""
        self.helped: Helped | None = None
        """The worker that this process is a helper of."""
        self._backend = backend
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._pid = 0
        self._inside = 0
        self.main: Client = self
        """The client that this one stands in for in the background; any other is its own."""
        self._behind: Client | None = None
        self.doors: Any = None
        """Its doors for code that blocks; False: there are none. See ``headrace.api.direct``."""
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._opener: asyncio.Task[None] | None = None
        """Opens it for callers who may give up meanwhile."""
        self._prepare()

    def _prepare(self) -> None:
        self._rng = self._given_rng or seeded_by_system()
        self._patience = Patience(self._rng, micros(self.settings.patience) / 1e6)
        self.packer = self._make_packer(self._backend.limits, IdMaker(self.clock, self._rng))

    def _access(self) -> Client:
        return self

    @property
    def here(self) -> Client:
        """The client to use on the loop that runs here. The loop in the background, which works for threads without
        one, has a client of its own: this one may be open elsewhere."""
        return self.behind if runs_here() else self

    @property
    def behind(self) -> Client:
        """The client of the same store for the loop in the background."""
        if self.main is not self:
            return self
        if self._behind is None:
            with _settling:
                if self._behind is None:
                    behind = self.sibling()
                    behind.main, behind.observers = self, self.observers
                    self._behind = behind
        return self._behind

    def sibling(self) -> Client:
        """Another client of the same store, which shares no connection with this one."""
        return Client(
            self._backend.sibling(),
            self.settings,
            clock=self.clock,
            rng=self._given_rng,
            heartbeat_thread=self._heartbeat_thread,
        )

    @property
    def limits(self) -> r.Limits:
        """What the store can take."""
        return self._backend.limits

    @property
    def patience(self) -> float:
        """For how many seconds calls are repeated."""
        return self._patience.seconds

    @property
    def blocking(self) -> Callable[[float], Backend] | None:
        """What makes stores whose calls block; None where calls need an event loop: in a simulation, with objects, and
        where the store cannot."""
        if self._given_rng is not None or self._location is not None or not self._heartbeat_thread:
            return None
        return self._backend.blocking

    @property
    def tx(self) -> Transactions | None:
        """Jobs in the caller's own transactions, if the store can do that."""
        return self._backend.tx

    def twin(self) -> Client:
        """Another client of the same store, for another event loop."""
        return Client(self._backend.sibling(), self.settings, clock=self.clock)

    # -- opening and closing

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The loop that has the client open, or is about to; it can be used only there. Callable from any thread."""
        found = self._home
        return None if found is None or found[0] != os.getpid() or found[1].is_closed() else found[1]

    def settle(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        """Make this loop its home, unless it has one; returns its home. Callable from any thread."""
        with _settling:
            home = self.home
            if home is None:
                self._home = (os.getpid(), loop)
            return home or loop

    def _unsettle(self, loop: asyncio.AbstractEventLoop) -> None:
        with _settling:
            if self.home is loop:
                self._home = None

    async def open(self) -> None:
        """Connect now instead of on first use, to see at once whether the store is there."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._pid == os.getpid():
            return
        self._settle_here(loop)
        if self._opening is None or self._opening[0] is not loop:
            self._opening = (loop, asyncio.Lock())
        async with self._opening[1]:
            if self._loop is loop and self._pid == os.getpid():
                return
            self._settle_here(loop)
            try:
                await self._leave_old_loop()
                await self._backend.open()
                self._stowage = self._open_objects()
            except BaseException:
                self._unsettle(loop)
                raise
            self._tasks = Tasks()
            self._budget = BudgetWatch(self._backend, self.observers, self.clock)
            self._pulls: WeakSet[Pull] = WeakSet()
            self._closed = asyncio.Event()
            self._waiter = Waiter(self._backend, self.clock, self._rng, self._tasks, self._patience)
            self._inserts: Batcher[r.Row, r.Inserted] = Batcher(
                self._insert_rows,
                self._tasks,
                self._rng,
                max_batch=self._backend.limits.max_batch,
                max_bytes=_MAX_BYTES,
                weigh=_weight,
                patience=self._patience.seconds,
                apart=lambda row: row.queue,
                name="headrace-insert",
            )
            self._loop, self._pid, self._inside = loop, os.getpid(), 0
            self._feed = self._make_feed()

    def _make_feed(self) -> Feed | None:
        """None in simulations, whose time is not ours."""
        if self._backend.events is None or not self._heartbeat_thread:
            return None
        strategy = self.settings.worker.name
        worker = "" if strategy == "random" else worker_name(strategy, self.rng)
        feed = Feed(self._backend.events, self.observers, self.clock, self._tasks, worker)
        feed.start()
        return feed

    def _open_objects(self) -> Stowage | None:
        if self._location is None:
            return None
        if self._backend.references is None:
            raise ConfigError(
                "objects.url: this store cannot find jobs by their objects, so none may leave it; unset it"
            )
        settings = self.settings.objects
        told = partial(self.observers.requested, OBJECTS)
        objects = Objects(self._location, keep_days=-(-micros(settings.keep) // _DAY), timed=told)
        return Stowage(objects, settings, self.clock, self._rng, self.observers)

    @property
    def stowage(self) -> Stowage | None:
        """What moves sections to the object store and back, if there is one; of an open client."""
        return self._stowage

    def payload_sizes(self) -> dict[str, Any]:
        """How large the sections and results were that this client has packed so far, as plain data that JSON can
        carry: of each how many, their bytes before and after compression, and the largest before it. ``objects``: how
        many requests it made to the object store, by kind."""
        return self.packer.sizes.plain() | {
            "objects": {} if self._stowage is None else dict(self._stowage.objects.requests)
        }

    def _settle_here(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.settle(loop) is not loop:
            raise ConfigError(
                "this client is in use on another event loop; make one client per loop, or close it there first: leave "
                "`async with app`. In threads, call task.enqueue_sync(…), or use SyncApp(app)"
            )

    async def _open_patiently(self) -> None:
        """Open for an enqueue, which waits while the store is away."""
        if self._loop is not asyncio.get_running_loop() or self._pid != os.getpid():
            await self._patience.repeat(self._open_behind, final=ConfigError)

    async def _open_behind(self) -> None:
        """Open for callers who may give up. Opening goes on then, as it may take long: it may create the store."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._pid == os.getpid():
            return
        if self._opener is None or self._opener.done() or self._opener.get_loop() is not loop:
            self._opener = loop.create_task(self.open(), name="headrace-open")
            self._opener.add_done_callback(_seen)
        await asyncio.shield(self._opener)

    async def _leave_old_loop(self) -> None:
        if self._loop is None:
            return
        old, self._backend = self._backend, self._backend.sibling()
        if self._pid == os.getpid():
            await old.close()
        self._prepare()

    async def close(self) -> None:
        """Finish what was submitted and disconnect. The client opens itself again when it is used."""
        loop = asyncio.get_running_loop()
        if self._opener is not None and self._opener.get_loop() is loop and not self._opener.done():
            self._opener.cancel()
            await asyncio.wait([self._opener])
        if self._loop is not loop or self._pid != os.getpid():
            return
        self._closed.set()
        for pull in list(self._pulls):
            await pull.close()
        for _ in range(_FLUSHES):
            await self._inserts.flush()
            if self._inserts.quiet:
                break
        # From here on, calls open the client anew: nothing may be submitted to what is about to end.
        old, self._backend = self._backend, self._backend.sibling()
        feed, waiter, tasks = self._feed, self._waiter, self._tasks
        self._loop = None
        self._unsettle(loop)
        if feed is not None:
            await feed.close()
        waiter.close()
        await tasks.close()
        await old.close()

    async def __aenter__(self) -> Client:
        await self.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.exit():
            await self.close()

    async def enter(self) -> bool:
        """Open it for a block; returns whether no other block has it open."""
        await self.open()
        self._inside += 1
        return self._inside == 1

    def exit(self) -> bool:
        """Leave a block; returns whether it was the last one, so that the client is to be closed."""
        self._inside -= 1
        return self._inside <= 0

    async def backend(self) -> Backend:
        """The opened store, for tools that speak its protocol. A call that it does not answer within ``patience`` is
        given up."""
        if self._loop is not asyncio.get_running_loop() or self._pid != os.getpid():
            await self._patience.once(self._open_behind())
        return self._patience.kept(self._backend)

    # -- enqueue

    async def enqueue(self, job: NewJob, *, reply: bool = False) -> r.Inserted:
        """Store one job. Calls made at the same time share a trip. With ``reply`` its end can be waited for cheaply."""
        return await self._enqueue(job, reply=reply)

    async def _enqueue(self, job: NewJob, *, reply: bool, at_gate: list[Admission] | None = None) -> r.Inserted:
        """``at_gate`` gets what is known about the job if there was no room for it."""
        if self.sending is None:
            return await self._store(job, reply, at_gate)
        with self.sending([job]) as [marked]:
            return await self._store(marked, reply, at_gate)

    async def _store(self, job: NewJob, reply: bool, at_gate: list[Admission] | None) -> r.Inserted:
        await self._open_patiently()
        if reply:
            await self._waiter.prepare()
        row = await self._pack(job, self._waiter.inbox if reply else None)
        try:
            answer = await self._inserts.put(row)
        except Unavailable as error:
            raise _maybe_stored(error) from error.__cause__
        self._tell_inserted(row, answer)
        if answer.status is not r.InsertStatus.FULL:
            return answer
        admission = Admission([job], [row], [answer])
        if at_gate is not None:
            at_gate.append(admission)
        return (await self._admit(admission))[0]

    async def _pack(self, job: NewJob, inbox: str | None) -> r.Row:
        if not self.packer.seals:
            return self.packer.pack(job, inbox)
        [row] = await self.packer.pack_all([job], inbox)
        return row

    async def insert(self, jobs: Iterable[NewJob]) -> list[r.Inserted]:
        """Store many jobs, in chunks of the store's batch size; answers come in the order of the jobs.

        All jobs are checked before the first is stored. Each chunk is stored whole or not at all, except for jobs that
        a queue has no room for: ``QueueFull`` lists them. On Valkey a chunk for very many queues, tenants or groups is
        stored in pieces. Repeating the call with the same jobs (and ids) after an error stores nothing twice.
        """
        given = validation.check_jobs(jobs)
        if self.sending is None:
            return await self._store_all(given)
        with self.sending(given) as marked:
            return await self._store_all(marked)

    async def _store_all(self, given: list[NewJob]) -> list[r.Inserted]:
        await self._open_patiently()
        rows = await self.packer.pack_all(given)
        answers: list[r.Inserted] = []
        for chunk in chunks(rows, self._backend.limits.max_batch):
            at = len(answers)
            try:
                found = await self._insert_patiently(chunk)
            except Unavailable as error:
                raise _maybe_stored(error, at, len(chunk), len(rows)) from error.__cause__
            full = any(answer.status is r.InsertStatus.FULL for answer in found)
            if self.observers.present or self.observers.meter or full:
                for row, answer in zip(chunk, found, strict=True):
                    self._tell_inserted(row, answer)
            if full:
                admission = Admission(given[at : at + len(chunk)], chunk, found)
                found = await self._admit(admission, rows[:at], rows[at + len(chunk) :])
            answers += found
        return answers

    async def _admit(
        self, admission: Admission, before: Sequence[r.Row] = (), after: Sequence[r.Row] = ()
    ) -> list[r.Inserted]:
        """The answers to jobs of which some were refused, once they have found room. Raises ``QueueFull``, which also
        lists the jobs stored ``before`` and those to be stored ``after``."""
        gate = Gate(self._insert_patiently, self._rng, self._patience.seconds, self._closed)
        refused = admission.refused
        try:
            why = await gate.pass_through(admission)
        except Unavailable as error:
            total = len(before) + len(admission.rows) + len(after)
            raise _maybe_stored(error, len(before), len(admission.rows), total) from error.__cause__
        for i in refused:
            if admission.answers[i].status is not r.InsertStatus.FULL:
                self._tell_inserted(admission.rows[i], admission.answers[i])
        if admission.refused:
            raise admission.error(before, after, why)
        return admission.answers

    async def _insert_patiently(self, rows: list[r.Row]) -> list[r.Inserted]:
        """Past the batcher: the rows are a whole batch already."""
        return await self._patience.repeat(lambda: self._insert_rows(rows), rows, _weight)

    async def _insert_rows(self, rows: list[r.Row]) -> list[r.Inserted]:
        if refusal := self._budget.refusal(self._tasks):
            raise refusal
        refused = {} if self._budget.queues is None else await self._budget.queues.refuse(rows)
        if not refused:
            return await self._store_rows(rows)
        others = [row for i, row in enumerate(rows) if i not in refused]
        answers = iter(await self._store_rows(others) if others else ())
        return [refused[i] if i in refused else next(answers) for i in range(len(rows))]

    async def _store_rows(self, rows: list[r.Row]) -> list[r.Inserted]:
        if self._stowage is None:
            return await timed(self.observers, "insert", self._backend.insert(rows, self.clock.stamp()))
        stowed = await self._stowage.stow_rows(rows)
        answers = await timed(self.observers, "insert", self._backend.insert(stowed, self.clock.stamp()))
        full = r.InsertStatus.FULL
        self._stowage.stored(row for row, one in zip(rows, answers, strict=True) if one.status is not full)
        return answers

    def _tell_inserted(self, row: r.Row, answer: r.Inserted) -> None:
        if self.observers.meter is not None and answer.status is not r.InsertStatus.FULL:
            new = answer.status in (r.InsertStatus.NEW, r.InsertStatus.SAME)
            self.observers.meter.count(row.queue, row.task, "enqueued" if new else "deduplicated")
        if self.observers.present or answer.status is r.InsertStatus.FULL:
            new = answer.status in (r.InsertStatus.NEW, r.InsertStatus.SAME)
            kind = EventKind.QUEUED if new else EventKind.DEDUPLICATED
            if answer.status is r.InsertStatus.FULL:
                kind = EventKind.REFUSED
            self.observers.tell(Event(kind, answer.id, row.queue, row.task, row.key, answer.attempt))

    # -- look and wait

    async def fetch(self, job_id: AnyId | r.JobKey, want: frozenset[str] = DETAILS) -> r.Record | None:
        """The flat record of a job, or None."""
        which = validation.check_which(job_id)
        [record] = await (await self.backend()).fetch([which], want, self.clock.stamp())
        if record is not None and self._stowage is not None and any(map(is_reference, record.cells.values())):
            [loaded] = await self._stowage.load([record.cells])
            record = replace(record, cells=record.cells | {n: c for n, c in loaded.items() if isinstance(c, bytes)})
        return record

    async def wait(self, job_id: AnyId, timeout: Duration | None = "30s", *, watch: bool = True) -> r.Record:
        """Wait until the job has completed, and return its record. Raises ``WaitTimeout``, or the ``JobError`` that
        says why there is no result."""
        await self.backend()
        seconds = None if timeout is None else micros(timeout, "timeout") / 1e6
        record = await self._waiter.wait(validation.raw_id(job_id), seconds, watch=watch)
        if record.state is JobState.FAILED:
            record = await self._with_payload(record)
        raise_unless_completed(record, self.packer.envelope)
        return record

    async def _with_payload(self, record: r.Record) -> r.Record:
        """A failed job's record, with its arguments if they are there."""
        try:
            again = await self.fetch(record.id)
        except Unavailable:
            return record
        return again if again is not None and again.state is JobState.FAILED else record

    async def call(self, job: NewJob, timeout: Duration | None = "30s") -> tuple[r.JobId, bytes | None]:
        """Store a job, or join the one that has its key, and wait for its result; returns the job's id and the result's
        cell. One timeout bounds both. Raises what ``wait`` raises."""
        seconds = None if timeout is None else micros(timeout, "timeout") / 1e6
        loop = asyncio.get_running_loop()
        began = loop.time()
        at_gate: list[Admission] = []
        try:
            async with asyncio.timeout(seconds):
                inserted = await self._enqueue(job, reply=True, at_gate=at_gate)
        except TimeoutError:
            raise WaitTimeout(_no_answer(seconds, at_gate)) from None
        if inserted.status is r.InsertStatus.DONE:
            return inserted.id, inserted.result
        left = None if seconds is None else max(0.0, seconds - (loop.time() - began))
        record = await self.wait(inserted.id, left, watch=inserted.status is not r.InsertStatus.NEW)
        return inserted.id, record.result

    @property
    def rng(self) -> Random:
        """Where its chance comes from."""
        return self._rng

    async def store_now(self) -> int:
        """The store's clock, by which leases end and jobs are due."""
        return await (await self.backend()).now(self.clock.stamp())

    async def list_jobs(self, sel: r.Selector, limit: int = 100) -> list[JobInfo]:
        """Matching jobs, newest first, without arguments and results."""
        sel, most = validation.check_selector(sel), self._backend.limits.max_batch
        validation.check_limit(limit)
        backend = await self.backend()
        found: list[JobInfo] = []
        after = None
        while len(found) < limit:
            page = await backend.scan(sel, after, min(limit - len(found), most), self.clock.stamp())
            found += [job_info(record, self.packer.envelope) for record in page.records]
            if (after := page.after) is None:
                break
        return found

    async def jobs_of_worker(self, name: str) -> list[JobInfo]:
        """The jobs that the workers of this name are running, newest first. The cost depends on how many jobs run, not
        on how many there are."""
        backend = await self.backend()
        running = r.Selector(states=frozenset({JobState.RUNNING}))
        found: list[JobInfo] = []
        after: str | None = None
        while True:
            page = await backend.scan(running, after, self._backend.limits.max_batch, self.clock.stamp())
            found += [job_info(record, self.packer.envelope) for record in page.records if record.worker == name]
            if (after := page.after) is None:
                return found

    async def stats(self, queues: Iterable[str] | None = None) -> r.Stats:
        """The store in numbers. With ``queues``, only these and their workers: other queues then cost nothing."""
        names = None if queues is None else validation.check_queues(queues)
        return await (await self.backend()).stats(self.clock.stamp(), queues=names)

    # -- change

    async def alter(self, sel: r.Selector, change: r.Change) -> list[r.Altered]:
        """Change jobs from outside: those named, or up to ``sel.limit`` that match.

        While the store is ``Unavailable``, a change that can be made twice without harm is repeated for up to
        ``patience``: one of jobs named by their ids, except ``Requeue`` and ``Reschedule``; ``Hold``; and one of a
        queue. The answer is that to the last try: what an earlier try changed is not ``changed``, or not there any
        more. Other changes raise ``Unavailable`` at once, and whether they were made is unknown: look before you repeat
        them.
        """
        sel, change = self._checked(sel, change)
        return await self._alter(sel, change, again=validation.repeatable(sel, change))

    async def alter_all(self, sel: r.Selector, change: r.Change) -> int:
        """Apply a change to everything that matches, step by step; returns how many jobs changed.

        While the store is ``Unavailable``, a step is repeated for up to ``patience``, except ``Requeue`` and
        ``Reschedule``. What an earlier try changed may not be counted. If it raises, some steps have been made: calling
        it again does the rest.
        """
        sel, change = self._checked(sel, change)
        total = 0
        while altered := await self._alter(sel, change, again=not isinstance(change, r.Requeue | r.Reschedule)):
            total += sum(one.changed for one in altered)
            if len(altered) < sel.limit:
                break
            sel = replace(sel, above=altered[-1].id)
        return total

    def _checked(self, sel: r.Selector, change: r.Change) -> tuple[r.Selector, r.Change]:
        return validation.check_selector(sel), validation.check_change(change, self.packer.priority)

    async def _alter(self, sel: r.Selector, change: r.Change, *, again: bool) -> list[r.Altered]:
        backend = await self.backend()
        if again:
            altered = await self._patience.repeat(lambda: self._backend.alter(sel, change, self.clock.stamp()))
        else:
            altered = await backend.alter(sel, change, self.clock.stamp())
        if self.observers and isinstance(change, r.Cancel):
            for one in altered:
                if one.changed and one.after is JobState.CANCELLED:
                    news = Event(EventKind.CANCELLED, one.id, one.queue, key=one.key, detail=change.reason)
                    self.observers.tell(news)
        return altered

    async def pause(
        self, queue: str, lasts: Duration | None = None, *, tenant: str | None = None, task: str | None = None
    ) -> None:
        """No worker claims from the queue, or jobs of one tenant or task in it, for that long or until it is resumed.
        Jobs that run go on."""
        await self._pause(queue, tenant, task, lasts=check_lasts(lasts))

    async def resume(self, queue: str, *, tenant: str | None = None, task: str | None = None) -> None:
        """Workers may claim again what was paused."""
        await self._pause(queue, tenant, task, paused=False)

    async def _pause(
        self, queue: str, tenant: str | None, task: str | None, *, paused: bool = True, lasts: int | None = None
    ) -> None:
        if tenant is not None and task is not None:
            raise InvalidJob(f"expected a tenant or a task, got both: {shown(tenant)} and {shown(task)}")
        pause = QueuePause(
            check_name(queue, "queue"),
            None if tenant is None else check_name(tenant, "tenant", empty=True),
            None if task is None else check_name(task, "task"),
            paused,
            lasts,
        )
        await self.backend()
        policies = self._backend.policies
        if policies is None:
            raise ConfigError("this store keeps no policies of queues, so it cannot pause one")
        await self._patience.repeat(lambda: policies.pause(pause, self.clock.stamp()))

    # -- work

    def worker(
        self,
        handlers: Mapping[str, Handler],
        queues: Sequence[str],
        settings: Settings | None = None,
        intervals: Mapping[str, IntervalFunction] | None = None,
        strays: Strays | None = None,
        trackers: Mapping[str, MakeRow] | None = None,
    ) -> Worker:
        """A worker on this store; the client must be open."""
        if self._loop is None:
            raise ConfigError("open the client before starting a worker")
        return Worker(
            self._backend,
            handlers,
            queues,
            settings or self.settings,
            self.packer,
            clock=self.clock,
            rng=self._rng,
            observers=self.observers,
            heartbeat_thread=self._heartbeat_thread,
            intervals=intervals,
            trackers=trackers,
            guest=self.guest,
            strays=strays,
            helper=self.helper,
            helped=self.helped,
            stowage=self._stowage,
        )

    def pull(
        self,
        queues: str | Iterable[str],
        *,
        batch: int = 100,
        want: Iterable[str] | None = None,
        lease: Duration | None = None,
        name: str | None = None,
        upkeep: bool = True,
    ) -> Pull:
        """Leased jobs in a loop of your own: ``async for jobs in client.pull("queue")``; see :class:`Pull`.

        ``batch``: at most this many at a time. ``want``: the sections that jobs come with; all of them if it is left
        out. ``lease`` and ``name``: instead of ``worker.lease`` and ``worker.name``. Like every worker, a pull does its
        share of upkeep, unless ``upkeep`` says no.
        """
        names = validation.check_queues([queues] if isinstance(queues, str) else queues)
        settings = self.settings.worker
        settings = replace(settings, lease=settings.lease if lease is None else lease, name=name or settings.name)

        async def start() -> Exchange:
            await self.open()
            self._pulls.add(pull)
            return Exchange(
                self._backend,
                names,
                replace(self.settings, worker=settings),
                self.packer,
                clock=self.clock,
                rng=self._rng,
                observers=self.observers,
                heartbeat_thread=self._heartbeat_thread,
                stowage=self._stowage,
            )

        if want is not None:
            want = frozenset([want] if isinstance(want, str) else want)
        pull = Pull(start, batch=batch, want=want, guest=self.guest or not upkeep, patience=self._patience.seconds)
        return pull


def _packer_maker(settings: PayloadSettings) -> Callable[[r.Limits, IdMaker], Packer]:
    keys = settings.sealing.keys
    if keys is None:
        return partial(Packer, settings)
    try:
        from headrace.payloads.keyring import read_keyring
        from headrace.payloads.sealing import SealingPacker
    except ImportError as error:
        raise ConfigError(f"sealing needs cryptography ({error}); install: pip install 'headrace[sealing]'") from error
    return partial(SealingPacker, settings, read_keyring(keys))


def _no_answer(seconds: float | None, at_gate: list[Admission]) -> str:
    """What is known about a job that was not stored in time. If it was at the gate, there was no room for it."""
    if not at_gate:
        return f"the store did not answer in {seconds} s; whether the job was stored is unknown"
    full = " and ".join(map(repr, at_gate[0].full))
    if at_gate[0].under_way:
        asked = "the store was asked again and has not answered: whether the job was stored is unknown"
        return f"queue {full}, or the store, was full for {seconds} s; {asked}"
    return f"queue {full}, or the store, was full for {seconds} s: the job was not stored"


def _maybe_stored(error: Unavailable, stored: int = 0, unknown: int = 1, total: int = 1) -> Unavailable:
    """The error of an insert without an answer for some of its jobs. Subclasses of ``Unavailable`` are answers: they
    say that these were not stored."""
    if type(error) is not Unavailable:
        return error
    what = "What was enqueued may be stored all the same"
    if unknown < total:
        what = f"Of {total:,} jobs, the first {stored:,} are stored, and the next {unknown:,} may be"
    again = "enqueue the same NewJob again, or one with the same key, and nothing is stored twice"
    return Unavailable(f"{error}. {what}: {again}")


def _seen(opener: asyncio.Task[None]) -> None:
    """Whoever still waits gets the error; if nobody does, it is no news."""
    if not opener.cancelled():
        opener.exception()


def _not_found(job_id: AnyId | r.JobKey) -> JobNotFound:
    return JobNotFound(f"no job {_shown_id(job_id)}: it never existed, or its record is past retention")


def _shown_id(job_id: AnyId | r.JobKey) -> str:
    if isinstance(job_id, r.JobKey):
        return f"{shown(job_id.key)} in queue {shown(job_id.queue)}"
    return str(UUID(bytes=validation.raw_id(job_id)))


_DAY = 86_400_000_000
_FLUSHES = 1_000
"""How often a client that is closed waits for jobs that keep coming."""
_MAX_BYTES = 64 * 1024 * 1024
"""Bytes of rows in one trip, unless a single row is larger."""


def _weight(row: r.Row) -> int:
    return 256 + sum(map(len, row.cells.values()))


def chunks(rows: list[r.Row], most: int) -> Iterator[list[r.Row]]:
    """Rows in order, in pieces of bounded number and bytes."""
    chunk: list[r.Row] = []
    weight = 0
    for row in rows:
        weight += _weight(row)
        if chunk and (len(chunk) == most or weight > _MAX_BYTES):
            yield chunk
            chunk, weight = [], _weight(row)
        chunk.append(row)
    if chunk:
        yield chunk
