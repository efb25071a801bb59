"""The reliable queue: one class for producers, consumers, or both; dedup by id, request/response, cached results."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, Unpack, get_args

import msgspec

from headrace.api.client import Client
from headrace.api.connection import connect
from headrace.api.foreign import Connected, tell_contradiction
from headrace.api.job_errors import failed, raise_unless_completed
from headrace.api.loop_guard import needs_loop, no_loop
from headrace.api.options import known, length
from headrace.api.queue_answers import Completed, Duplicate, JobStatus, Queued, state_word
from headrace.api.signals import Stopper
from headrace.core.callables import check_handler, check_listener, is_async
from headrace.core.config import Settings
from headrace.core.durations import micros
from headrace.core.events import Event, EventKind
from headrace.core.names import check_name, check_queue
from headrace.errors import CodecError, ConfigError, InvalidJob, JobFailed
from headrace.payloads.codec import JsonSerde, Serde, check_serde
from headrace.payloads.offload import Wrap, decode_result, wrap
from headrace.seam.instants import to_datetime
from headrace.seam.records import Altered, Cancel, Hold, Inserted, InsertStatus, JobKey, Leased, Record, Selector
from headrace.text import shown
from headrace.types import Done, Duration, Encoded, JobState, NewJob, Outcome, QueueOptions
from headrace.worker.executors import ThreadExecutor
from headrace.worker.given import refuse_given
from headrace.worker.handler import After, Handler, is_outcome
from headrace.worker.job import Job
from headrace.worker.retry import RetryPolicy, exponential
from headrace.worker.worker import Worker

P = TypeVar("P")
R = TypeVar("R")

log = logging.getLogger("headrace")


_EVENTS = {
    EventKind.QUEUED: "queued",
    EventKind.STARTED: "processing",
    EventKind.RETRYING: "failing",
    EventKind.COMPLETED: "completed",
    EventKind.FAILED: "failed",
    EventKind.CANCELLED: "cancelled",
    EventKind.EXPIRED: "cancelled",
    EventKind.STALLED: "stalled",
    EventKind.RELEASED: "requeued",
    EventKind.ERROR: "error",
    EventKind.STORE_AWAY: "error",
    EventKind.WORKER_STARTED: "started",
    EventKind.WORKER_STOPPED: "stopped",
}


class Queue(Generic[P, R]):
    """A named queue of payloads ``P`` whose handler gives results ``R``. Handlers run at least once: make them
    idempotent.

    >>> import asyncio
    >>> async def main():
    ...     queue = Queue[int, int]("squares", "memory://")
    ...     @queue.execute
    ...     async def square(job: Job[int]) -> int:
    ...         return job.payload ** 2
    ...     async with queue:
    ...         return await queue.enqueue_and_wait("job-7", 7)
    >>> asyncio.run(main())
    49
    """

    def __init__(
        self,
        name: str,
        client: Client | str | Connected | None = None,
        *,
        concurrency: int = 1,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        lease: Duration = "30s",
        result_ttl: Duration = "1h",
        timeout: Duration | None = None,
        grace: Duration = "10s",
        worker: str = "random",
        payload_serde: Serde[P] | None = None,
        result_serde: Serde[R] | None = None,
    ) -> None:
        self.name = check_queue(name)
        self._client = client if isinstance(client, Client) else connect(client)
        tell_contradiction(client, "Queue(name)")
        self._owns_client = not isinstance(client, Client)
        for serde in (payload_serde, result_serde):
            if serde is not None:
                check_serde(serde)
        if not isinstance(retry, RetryPolicy | None):
            raise ConfigError(f"retry: expected a RetryPolicy like exponential(3), got {shown(retry)}")
        self._payload_serde = payload_serde
        self._result_serde = result_serde
        if retry is not None and max_attempts is not None:
            raise ConfigError("expected max_attempts or retry, got both; give the policy its own: exponential(10)")
        self._retry = retry or exponential(3 if max_attempts is None else max_attempts)
        self._result_ttl = micros(result_ttl, "result_ttl")
        self._timeout = None if timeout is None else micros(timeout, "timeout")
        settings = self.client.settings
        self.settings: Settings = msgspec.structs.replace(
            settings,
            worker=msgspec.structs.replace(
                settings.worker,
                concurrency=concurrency,
                lease=micros(lease, "lease") / 1e6,
                grace=micros(grace, "grace") / 1e6,
                name=worker,
            ),
        )
        self._handler: Callable[..., Any] | None = None
        self._after: After | None = None
        self._listeners: defaultdict[str, list[Callable[..., None]]] = defaultdict(list)
        self._worker: Worker | None = None
        self._work: asyncio.Task[None] | None = None
        self._stops = 0
        self._threads = ThreadExecutor()

    @property
    def client(self) -> Client:
        """The way to the store, on the loop that runs here."""
        return self._client.here

    # -- lifecycle

    def execute(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler, as a decorator: ``async def (job)``, plain ``def (job)`` (in a thread), or callback style
        ``def (job, done)`` which calls ``done(error, result)``."""
        if not callable(handler):
            raise ConfigError(f"handler: expected a function, got {type(handler).__name__}")
        check_handler(handler, f"queue {self.name}")
        refuse_given(handler, f"queue {self.name}", "make it where the queue is opened")
        if self._handler is not None:
            raise ConfigError(f"queue {self.name!r} has a handler already")
        self._handler = handler
        return handler

    def after(self, hook: After) -> After:
        """A hook, as a decorator: ``async def (job, ending)`` runs when a job ends, before that is stored, and may
        change ``ending.result``, ``ending.error`` and ``ending.result_ttl``. If it raises, nothing changes and there is
        an ``error`` event."""
        if not inspect.iscoroutinefunction(hook):
            raise ConfigError(f"after hook: expected an async function, got {shown(hook)}")
        self._after = hook
        return hook

    def on(self, event: str, listener: Callable[..., None]) -> None:
        """Call ``listener`` on an event of this process: ``queued``, ``processing``, ``failing``, ``cancelled``,
        ``stalled``, ``requeued`` (id); ``completed`` (id, result); ``failed`` (id, error); ``error`` (error);
        ``started``, ``stopped`` (worker)."""
        known = sorted(set(_EVENTS.values()))
        if event not in known:
            raise ConfigError(f"unknown event {event!r}; there are: {', '.join(known)}")
        check_listener(listener, "listener")
        if not self._listeners:
            self.client.observers.add(self._tell)
        self._listeners[event].append(listener)

    async def start(self) -> None:
        """Connect and, if there is a handler, start working. Starting twice is harmless."""
        if not await self._open(self._stops) or self._handler is None:
            return
        if self._work is not None and not self._work.done():
            return
        self._worker = self._make_worker()
        self._work = asyncio.ensure_future(self._worker.run())
        self._work.add_done_callback(self._ended)

    @property
    def worker(self) -> Worker | None:
        """The worker that runs in this process now."""
        return self._worker

    async def stop(self) -> None:
        """Finish running jobs within the grace time, give the others back, disconnect. Stopping twice is harmless."""
        self._stops += 1
        worker, work = self._worker, self._work
        if worker is not None and work is not None:
            worker.stop()
            await asyncio.wait([work])
            self._worker = self._work = None
            await self._threads.close()
        if self._owns_client:
            await self.client.close()

    async def _open(self, stops: int) -> bool:
        """Connect; returns whether nobody has asked for a stop meanwhile."""
        await self.client.open()
        if self._stops != stops and self._owns_client:
            await self.client.close()
        return self._stops == stops

    def work(self, *, burst: bool = False) -> Coroutine[Any, Any, None]:
        """Work until ``stop``; with ``burst``, until nothing more is due. A ``stop`` counts from this call on, even
        before the work is awaited."""
        return self._serve(burst, self._stops)

    async def _serve(self, burst: bool, stops: int) -> None:
        if self._handler is None:
            raise ConfigError(f"queue {self.name!r} has no handler; register one with @queue.execute")
        if self._work is not None and not self._work.done():
            raise ConfigError(f"a worker of queue {self.name!r} already runs in this process")
        if self._stops != stops or not await self._open(stops):
            return
        self._worker = self._make_worker()
        self._work = asyncio.ensure_future(self._worker.run(burst=burst))
        try:
            await self._work
        finally:
            self._worker = self._work = None
            await self._threads.close()

    def run(self, *, burst: bool = False) -> None:
        """Work until SIGINT or SIGTERM: the first stops gracefully, a second one at once."""
        no_loop("queue.run()", "await queue.work()")
        asyncio.run(self._run(burst))

    async def _run(self, burst: bool) -> None:
        async with self.client:
            with Stopper(self._ask_to_stop):
                await self.work(burst=burst)

    def _ask_to_stop(self) -> None:
        self._stops += 1
        if self._worker is not None:
            self._worker.stop()

    async def __aenter__(self) -> Queue[P, R]:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # -- producing

    @needs_loop("SyncQueue(queue).enqueue(…)")
    async def enqueue(self, id: str, payload: P, **options: Unpack[QueueOptions]) -> Queued | Duplicate | Completed[R]:
        """Store a job under ``id``, unless one is there. Duplicates are an answer, not an error; the first accepted
        enqueue decides payload and options. A failed id runs again, unless ``on_failed="return"``."""
        return await self.enqueue_on(self.client, id, payload, options)

    async def enqueue_on(
        self, client: Client, id: str, payload: P, options: QueueOptions, wrap: Wrap = wrap
    ) -> Queued | Duplicate | Completed[R]:
        """The same by another client of its store."""
        job = await self._job(id, payload, options, wrap)
        return self._answer(await client.enqueue(job))

    @needs_loop("SyncQueue(queue).enqueue_and_wait(…)")
    async def enqueue_and_wait(
        self, id: str, payload: P, *, timeout: Duration | None = "30s", **options: Unpack[QueueOptions]
    ) -> R:
        """Store a job, or join the one that has the id, and wait for its result. Raises ``WaitTimeout`` (the job goes
        on), ``JobFailed``, ``JobCancelled`` or ``ResultExpired``."""
        if timeout is not None:
            micros(timeout, "timeout")
        if length(options, "result_ttl", None) == 0:
            raise InvalidJob("result_ttl: expected more than 0, got 0, which keeps no result to wait for")
        job = await self._job(id, payload, options)
        job_id, cell = await self.client.call(job, timeout)
        return await decode_result(self.client.packer.envelope, cell, self._results, job_id)

    # -- managing

    @needs_loop("SyncQueue(queue).cancel(id)")
    async def cancel(self, id: str) -> str:
        """``cancelled``; or ``processing`` (it runs, and has been asked to stop), ``completed``, ``failed``,
        ``not_found``."""
        return await self.cancel_on(self.client, id)

    async def cancel_on(self, client: Client, id: str) -> str:
        """The same by another client of its store."""
        altered = await self._alter(client, id, Cancel())
        if altered is None:
            return "not_found"
        if altered.after is JobState.CANCELLED:
            return "cancelled" if altered.changed else "not_found"
        return {JobState.RUNNING: "processing", JobState.COMPLETED: "completed"}.get(altered.before, "failed")

    async def status(self, id: str) -> JobStatus[R] | None:
        """Where the job is, or None if it is unknown."""
        return await self.status_on(self.client, id)

    async def status_on(self, client: Client, id: str) -> JobStatus[R] | None:
        """The same by another client of its store."""
        record = await client.fetch(JobKey(self.name, check_name(id, "id", empty=True)))
        if record is None:
            return None
        return JobStatus(
            id,
            state_word(record.state, record.attempt),
            to_datetime(record.enqueued_at),
            record.attempt,
            self._decode_result(record) if record.held else None,
            failed(record, self.client.packer.envelope) if record.state is JobState.FAILED else None,
            record.worker,
            to_datetime(record.last_transition),
        )

    async def result(self, id: str, default: R | None = None) -> R | None:
        """The cached result, or ``default`` while there is none."""
        return await self.result_on(self.client, id, default)

    async def result_on(self, client: Client, id: str, default: R | None) -> R | None:
        """The same by another client of its store."""
        record = await client.fetch(JobKey(self.name, check_name(id, "id", empty=True)))
        return default if record is None or not record.held else self._decode_result(record)

    async def update_result_ttl(self, id: str, result_ttl: Duration) -> str:
        """Keep the result for ``result_ttl`` from now: ``updated``, ``not_found``, ``not_terminal`` or
        ``missing_payload`` (it ended, but no result is kept)."""
        altered = await self._alter(self.client, id, Hold(micros(result_ttl, "result_ttl")))
        if altered is None:
            return "not_found"
        if altered.changed:
            return "updated"
        return "missing_payload" if altered.before.terminal else "not_terminal"

    # -- inside

    def _ended(self, work: asyncio.Task[None]) -> None:
        """Report a worker that ended with an error."""
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error(
                "the worker of queue %r ended with an error; start() starts another one", self.name, exc_info=error
            )
            self._tell(Event(EventKind.ERROR, queue=self.name, error=error, detail="the worker ended"))

    async def _job(self, id: str, payload: P, options: QueueOptions, wrap: Wrap = wrap) -> NewJob:
        known(options, QueueOptions, f"queue {self.name!r}: ")
        try:
            body = self.client.packer.encode(payload, self._payloads, "payload")
            cell = await wrap(self.client.packer.envelope, body, self._payloads.kind, "payload")
        except CodecError as error:
            raise CodecError(f"queue {self.name!r}, id {shown(id)}: payload: {error}") from error
        key = check_name(id, "id", empty=True)
        return NewJob(task=self.name, queue=self.name, args=Encoded(cell), key=key, **options)

    def _answer(self, inserted: Inserted) -> Queued | Duplicate | Completed[R]:
        match inserted.status:
            case InsertStatus.DUPLICATE:
                return Duplicate(state_word(inserted.state, inserted.attempt), inserted.attempt)
            case InsertStatus.REPLACED:
                return Duplicate(state_word(inserted.state, inserted.attempt), inserted.attempt, "replaced")
            case InsertStatus.DONE:
                return Completed(self._decode(inserted))
            case _:
                return Queued()

    async def _alter(self, client: Client, id: str, change: Cancel | Hold) -> Altered | None:
        key = JobKey(self.name, check_name(id, "id", empty=True))
        altered = await client.alter(Selector(keys=[key]), change)
        return altered[0] if altered else None

    def _decode_result(self, record: Record) -> R:
        raise_unless_completed(record, self.client.packer.envelope)
        return self._decode(record)

    def _decode(self, ended: Inserted | Record) -> R:
        return self.client.packer.envelope.decode(ended.result, self._results, "result", ended.id)

    def _types(self) -> tuple[Any, Any]:
        """``Image`` and ``Thumb`` of ``Queue[Image, Thumb]("images")``; Any where the class was not subscripted."""
        bases = [getattr(self, "__orig_class__", None), *getattr(type(self), "__orig_bases__", ())]
        for base in bases:
            given = get_args(base)
            if len(given) == 2 and not any(isinstance(one, TypeVar) for one in given):
                return given[0], given[1]
        return Any, Any

    @property
    def _payloads(self) -> Serde[P]:
        if self._payload_serde is None:
            self._payload_serde = JsonSerde(self._types()[0])
        return self._payload_serde

    @property
    def _results(self) -> Serde[R]:
        if self._result_serde is None:
            self._result_serde = JsonSerde(self._types()[1])
        return self._result_serde

    def _make_worker(self) -> Worker:
        return self.client.worker(
            {self.name: self._make_handler()}, [self.name], self.settings, strays=self._threads.strays
        )

    def _make_handler(self) -> Handler:
        return Handler(
            task=self.name,
            load=self._load,
            retry=self._retry,
            result_serde=self._results,
            result_ttl=self._result_ttl,
            timeout=self._timeout,
            call=self._call,
            after=self._after,
            threaded=self._handler is not None and not (is_async(self._handler) or _takes_callback(self._handler)),
        )

    def _load(self, leased: Leased) -> P:
        return self.client.packer.decode(leased, self._payloads)

    async def _call(self, job: Job[Any]) -> Outcome:
        handler = self._handler
        assert handler is not None
        if is_async(handler):
            value = await handler(job)
        elif _takes_callback(handler):
            value = await _with_callback(handler, job)
        else:
            value = await self._threads.run(lambda: handler(job), self.name)
            value = await value if inspect.isawaitable(value) else value
        return value if is_outcome(value) else Done(value)

    def _tell(self, event: Event) -> None:
        name = _EVENTS.get(event.kind)
        if name is None or name not in self._listeners or (event.queue and event.queue != self.name):
            return
        if event.worker and (self._worker is None or event.worker != self._worker.name):
            return
        job_id = event.key if event.key is not None else event.id.hex()
        match name:
            case "completed":
                given: tuple[Any, ...] = (job_id, event.result)
            case "failed":
                given = (job_id, event.error or JobFailed(event.detail, reason=event.detail))
            case "error":
                given = (event.error,)
            case "started" | "stopped":
                given = (event.worker,)
            case _:
                given = (job_id,)
        for listener in tuple(self._listeners[name]):
            try:
                listener(*given)
            except Exception:
                log.exception("a listener to %s raised", name)


def _takes_callback(handler: Callable[..., Any]) -> bool:
    """Whether the handler needs a second argument."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(handler).parameters.values()
    return len([p for p in parameters if p.kind in kinds and p.default is p.empty]) > 1


async def _with_callback(handler: Callable[..., None], job: Job[Any]) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def answer(error: object, result: Any) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            future.set_exception(RuntimeError(f"the handler reported an error: {shown(error)}"))

    def done(error: BaseException | None = None, result: Any = None) -> None:
        loop.call_soon_threadsafe(answer, error, result)

    handler(job, done)
    return await future
