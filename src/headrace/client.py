"""The client: what every facade holds. Enqueue, look, wait, change; and start workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Protocol
from uuid import UUID

from msgspec.structs import replace

from headrace.config import Settings
from headrace.core.batcher import Batcher
from headrace.core.clock import Clock, SystemClock
from headrace.core.codec import Envelope
from headrace.core.events import Event, EventKind, Observers
from headrace.core.handler import Handler
from headrace.core.ids import IdMaker, parse_id, seeded_by_system
from headrace.core.judge import EXHAUSTED, failures
from headrace.core.names import check_name
from headrace.core.payloads import Packer
from headrace.core.tasks import Tasks
from headrace.core.waiter import Waiter
from headrace.core.worker import Worker
from headrace.durations import micros
from headrace.errors import (
    ConfigError,
    InvalidJob,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobNotFound,
    ResultExpired,
    RetriesExhausted,
    Unavailable,
    WaitTimeout,
)
from headrace.info import DETAILS, JobInfo, job_info
from headrace.protocol import Backend, Transactions
from headrace.records import (
    Altered,
    Cancel,
    Change,
    Configure,
    Inserted,
    InsertStatus,
    JobId,
    JobKey,
    Limits,
    Record,
    Row,
    Selector,
    Stats,
)
from headrace.shown import shown
from headrace.types import Duration, JobState, NewJob

AnyId = UUID | str | bytes


class Owner(Protocol):
    """Whatever has a client; tests may give it another one."""

    client: Client


class Client:
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
        self.observers = Observers()
        self._given_rng = rng
        self._heartbeat_thread = heartbeat_thread
        self._backend = backend
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._made_in = os.getpid()
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._prepare()

    def _prepare(self) -> None:
        self._rng = self._given_rng or seeded_by_system()
        self.packer = Packer(self.settings.payloads, self._backend.limits, IdMaker(self.clock, self._rng))

    @property
    def limits(self) -> Limits:
        """What the store can take."""
        return self._backend.limits

    @property
    def tx(self) -> Transactions | None:
        """Jobs in transactions of the caller's own, where the store can do that."""
        return self._backend.tx

    # -- opening and closing

    def settle_in(self) -> None:
        """Make a forked child's ids differ from its parent's, also where it never opens the client."""
        if self._made_in != os.getpid():
            self._made_in = os.getpid()
            self._prepare()

    async def open(self) -> None:
        """Connect now instead of on first use, to see at once whether the store is there."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._pid == os.getpid():
            return
        if self._opening is None or self._opening[0] is not loop:
            self._opening = (loop, asyncio.Lock())
        async with self._opening[1]:
            if self._loop is loop and self._pid == os.getpid():
                return
            await self._leave_old_loop()
            await self._backend.open()
            self._tasks = Tasks()
            self._waiter = Waiter(self._backend, self.clock, self._rng, self._tasks)
            self._inserts: Batcher[Row, Inserted] = Batcher(
                self._insert_rows,
                self._tasks,
                self._rng,
                max_batch=self._backend.limits.max_batch,
                max_bytes=_MAX_BYTES,
                weigh=_weight,
                patience=micros(self.settings.patience) / 1e6,
                name="headrace-insert",
            )
            self._loop, self._pid = loop, os.getpid()

    async def _leave_old_loop(self) -> None:
        if self._loop is None:
            self.settle_in()
            return
        if self._pid == os.getpid() and not self._loop.is_closed():
            raise ConfigError("this client is in use on another event loop; make one client per loop, or use SyncApp")
        old, self._backend = self._backend, self._backend.sibling()
        if self._pid == os.getpid():
            await old.close()
        self._prepare()

    async def close(self) -> None:
        """Finish what was submitted and disconnect. The client opens itself again when it is used again."""
        if self._loop is None or self._loop is not asyncio.get_running_loop() or self._pid != os.getpid():
            return
        await self._inserts.flush()
        self._waiter.close()
        await self._tasks.close()
        old, self._backend = self._backend, self._backend.sibling()
        self._loop = None
        await old.close()

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def backend(self) -> Backend:
        """The opened store, for tools that speak its protocol."""
        await self.open()
        return self._backend

    # -- enqueue

    async def enqueue(self, job: NewJob, *, reply: bool = False) -> Inserted:
        """Store one job. Calls made at the same time share a trip. With ``reply`` its end can be waited for cheaply."""
        await self.open()
        if reply:
            await self._waiter.prepare()
        row = self.packer.pack(job, self._waiter.inbox if reply else None)
        answer = await self._inserts.submit(row)
        self._tell_inserted(row, answer)
        return answer

    async def insert(self, jobs: Iterable[NewJob]) -> list[Inserted]:
        """Store many jobs, in chunks of the store's batch size; answers come in the order of the jobs.

        All jobs are checked before the first is stored. Each chunk is stored whole or not at all; repeating the call
        with the same jobs (and ids) after an error stores nothing twice.
        """
        await self.open()
        rows = [self.packer.pack(job) for job in jobs]
        answers: list[Inserted] = []
        for chunk in chunks(rows, self._backend.limits.max_batch):
            answers += await self._inserts.send(chunk)
        if self.observers:
            for row, answer in zip(rows, answers, strict=True):
                self._tell_inserted(row, answer)
        return answers

    async def _insert_rows(self, rows: list[Row]) -> list[Inserted]:
        return await self._backend.insert(rows, self.clock.stamp())

    def _tell_inserted(self, row: Row, answer: Inserted) -> None:
        if self.observers:
            new = answer.status in (InsertStatus.NEW, InsertStatus.SAME)
            kind = EventKind.QUEUED if new else EventKind.DEDUPLICATED
            self.observers.tell(Event(kind, answer.id, row.queue, row.task, row.key, answer.attempt))

    # -- look and wait

    async def get(self, job_id: AnyId | JobKey) -> JobInfo:
        """All that is known of a job. Raises ``JobNotFound``."""
        record = await self.fetch(job_id)
        if record is None:
            raise JobNotFound(f"no job {_shown_id(job_id)}: it never was, or its record is past retention")
        return job_info(record, self.packer.envelope)

    async def fetch(self, job_id: AnyId | JobKey, want: frozenset[str] = DETAILS) -> Record | None:
        """The flat record of a job, or None."""
        await self.open()
        name = job_id if isinstance(job_id, JobKey) else raw_id(job_id)
        [record] = await self._backend.fetch([name], want, self.clock.stamp())
        return record

    async def wait(self, job_id: AnyId, timeout: Duration | None = "30s", *, watch: bool = True) -> Record:
        """Wait until the job has completed, and give its record. Raises ``WaitTimeout``, or the ``JobError`` that says
        why there is no result."""
        await self.open()
        seconds = None if timeout is None else micros(timeout, "timeout") / 1e6
        record = await self._waiter.wait(raw_id(job_id), seconds, watch=watch)
        if record.state is JobState.FAILED:
            record = await self._with_payload(record)
        raise_unless_completed(record, self.packer.envelope)
        return record

    async def _with_payload(self, record: Record) -> Record:
        """A failed job's record with its arguments, if they can be had."""
        try:
            again = await self.fetch(record.id)
        except Unavailable:
            return record
        return again if again is not None and again.state is JobState.FAILED else record

    async def call(self, job: NewJob, timeout: Duration | None = "30s") -> bytes | None:
        """Store a job, or join the one that has its key, and wait for its result: the cell that holds it. One timeout
        bounds both. Raises what ``wait`` raises."""
        seconds = None if timeout is None else micros(timeout, "timeout") / 1e6
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(seconds):
                inserted = await self.enqueue(job, reply=True)
        except TimeoutError:
            message = f"the store did not answer in {seconds} s; whether the job was stored is unknown"
            raise WaitTimeout(message) from None
        if inserted.status is InsertStatus.DONE:
            return inserted.result
        left = None if seconds is None else max(0.0, seconds - (loop.time() - began))
        return (await self.wait(inserted.id, left, watch=inserted.state.terminal)).result

    async def list_jobs(self, sel: Selector, limit: int = 100) -> list[JobInfo]:
        """Matching jobs, newest first, without arguments and results."""
        await self.open()
        found: list[JobInfo] = []
        after = None
        while len(found) < limit:
            page = await self._backend.scan(sel, after, limit - len(found), self.clock.stamp())
            found += [job_info(record, self.packer.envelope) for record in page.records]
            if (after := page.after) is None:
                break
        return found

    async def stats(self) -> Stats:
        """The store in numbers."""
        await self.open()
        return await self._backend.stats(self.clock.stamp())

    # -- change

    async def cancel(self, job_id: AnyId | JobKey) -> JobState | None:
        """Cancel a waiting job, or ask a running one to stop. The state that it is in now: CANCELLED, RUNNING (it has
        been asked), or the one that it had ended in; None if there is no such job."""
        name = job_id if isinstance(job_id, JobKey) else raw_id(job_id)
        sel = Selector(keys=[name]) if isinstance(name, JobKey) else Selector(ids=[name])
        altered = await self.alter(sel, Cancel())
        return altered[0].after if altered else None

    async def alter(self, sel: Selector, change: Change) -> list[Altered]:
        """Change jobs from outside: those named, or up to ``sel.limit`` that match."""
        await self.open()
        if isinstance(change, Configure) and sel.queue is None:
            raise InvalidJob("expected the name of the queue to change")
        altered = await self._backend.alter(sel, change, self.clock.stamp())
        if self.observers and isinstance(change, Cancel):
            for one in altered:
                if one.changed and one.after is JobState.CANCELLED:
                    news = Event(EventKind.CANCELLED, one.id, one.queue, key=one.key, detail=change.reason)
                    self.observers.tell(news)
        return altered

    async def alter_all(self, sel: Selector, change: Change) -> int:
        """Apply a change to everything that matches, step by step; how many jobs changed."""
        total = 0
        while altered := await self.alter(sel, change):
            total += sum(one.changed for one in altered)
            if len(altered) < sel.limit:
                break
            sel = replace(sel, above=altered[-1].id)
        return total

    async def pause(self, queue: str) -> None:
        """No worker claims from the queue until it is resumed; jobs that run go on."""
        await self.alter(Selector(queue=check_name(queue, "queue")), Configure(paused=True))

    async def resume(self, queue: str) -> None:
        """Workers may claim from the queue again."""
        await self.alter(Selector(queue=check_name(queue, "queue")), Configure(paused=False))

    # -- work

    def worker(
        self, handlers: Mapping[str, Handler], queues: Sequence[str], settings: Settings | None = None
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
        )


def raw_id(job_id: AnyId) -> JobId:
    """Any spelling of a job id as 16 bytes."""
    if isinstance(job_id, UUID):
        return job_id.bytes
    if isinstance(job_id, bytes) and len(job_id) == 16:
        return job_id
    if isinstance(job_id, str):
        return parse_id(job_id)
    raise InvalidJob(f"expected a job id (UUID or its text), got {type(job_id).__name__} {shown(job_id)}")


def _shown_id(job_id: AnyId | JobKey) -> str:
    return (
        f"{job_id.key!r} in queue {job_id.queue!r}" if isinstance(job_id, JobKey) else str(UUID(bytes=raw_id(job_id)))
    )


_MAX_BYTES = 64 * 1024 * 1024
"""Of rows in one trip, unless a single one is larger."""


def _weight(row: Row) -> int:
    return 256 + sum(map(len, row.cells.values()))


def chunks(rows: list[Row], most: int) -> Iterator[list[Row]]:
    """Rows in order, in pieces of bounded number and bytes."""
    chunk: list[Row] = []
    weight = 0
    for row in rows:
        weight += _weight(row)
        if chunk and (len(chunk) == most or weight > _MAX_BYTES):
            yield chunk
            chunk, weight = [], _weight(row)
        chunk.append(row)
    if chunk:
        yield chunk


def raise_unless_completed(record: Record, envelope: Envelope) -> None:
    """Tell a waiter why there is no result."""
    job_id = str(UUID(bytes=record.id))
    match record.state:
        case JobState.COMPLETED:
            if not record.held:
                raise ResultExpired(f"job {job_id} completed, but its result is no longer kept")
        case JobState.CANCELLED:
            kind: type[JobError] = JobExpired if record.reason == "expired" else JobCancelled
            raise kind(f"job {job_id} was cancelled: {record.reason or 'no reason given'}")
        case JobState.FAILED:
            raise failed(record, envelope)


def failed(record: Record, envelope: Envelope) -> JobFailed:
    """The error for a job that lies with the dead letters."""
    job_id = str(UUID(bytes=record.id))
    last: dict[str, Any] = {}
    if known := failures(record.error):
        last = {"type": known[-1].type, "message": known[-1].message, "traceback": known[-1].traceback}
    kind = RetriesExhausted if record.reason == EXHAUSTED else JobFailed
    what = f"{last['type']}: {last['message']}" if last else record.reason
    return kind(
        f"job {job_id} failed after {record.attempt} attempt(s), {record.reason}: {what}",
        job_id=job_id,
        attempts=record.attempt,
        error=last,
        reason=record.reason,
        payload=job_info(record, envelope).args,
    )
