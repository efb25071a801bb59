"""Apps and queues for code without an event loop."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial, update_wrapper
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from headrace.api.app import App
from headrace.api.background import let_go
from headrace.api.batch import BatchTask
from headrace.api.blocking import Blocking
from headrace.api.client import AnyId, Client
from headrace.api.direct import Door, close_doors
from headrace.api.info import JobInfo
from headrace.api.loop_guard import no_loop
from headrace.api.options import JobOptions
from headrace.api.queue import Queue
from headrace.api.queue_answers import Completed, Duplicate, JobStatus, Queued
from headrace.api.sync_handle import SyncHandle
from headrace.api.task import Task
from headrace.core.validation import check_jobs
from headrace.errors import ConfigError, InvalidJob
from headrace.payloads.offload import wrap, wrap_here
from headrace.seam.records import Cancel, JobKey
from headrace.text import shown
from headrace.types import Duration, JobState, NewJob, QueueOptions

P = ParamSpec("P")
PayloadT = TypeVar("PayloadT")
R = TypeVar("R")


class _Face(Blocking):
    """What both faces share: they open, they close, and a closed one is not used."""

    _closed = False

    @property
    def _client(self) -> Client:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._closed = False
        self._do(self._client, self._open, "client.open()")
        return self

    async def _open(self) -> None:
        await self._client.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect what it has opened in the background. What is open on another loop stays open."""
        self._closed = True
        close_doors(self._client)
        let_go(self)

    def _loop_of(self, client: Client, instead: str, brief: bool) -> AbstractEventLoop | None:
        if self._closed:
            raise ConfigError(f"this {type(self).__name__} is closed; make another, or enter it again")
        return super()._loop_of(client, instead, brief)


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], path: str = "app"
) -> Callable[Concatenate[SyncApp, P], R]:
    """The same method for code that blocks; ``path`` leads to what has it."""
    where = f"{path}.{method.__name__}"
    find = attrgetter(where)

    def blocking(self: SyncApp, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def call() -> R:
            return await partial(find(self), *args, **kwargs)()  # type: ignore[no-any-return]

        return self._do(self._client, call, f"{where}(…)")

    # Nothing else comes along: async methods carry a mark that says so.
    update_wrapper(blocking, method, updated=())
    return blocking


class SyncApp(_Face):
    """An app for threads: every call runs on an event loop and returns when it is done. Thread-safe.

    If the app is open, that is the loop that has it open: the worker's, in a plain task, or the web server's. Otherwise
    it is one in a background thread, which the whole process shares.

    >>> app = App("memory://")
    >>> @app.task
    ... def double(n: int) -> int:
    ...     return 2 * n
    >>> with SyncApp(app) as jobs:
    ...     jobs.enqueue(double, 21).duplicate
    False
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self._drains = 0

    @property
    def _client(self) -> Client:
        return self.app.client

    def close(self) -> None:
        """Ask its drains to stop, and disconnect what it has opened in the background. An app that is open on another
        loop stays open."""
        if self._drains:
            self.app.stop()
        super().close()

    def wait_for(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine of the app, and wait for it."""

        async def call() -> R:
            return await work

        try:
            return self._do(self._client, call, "it")
        finally:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def enqueue(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """Store a job; returns when it is durable. ``task.enqueue_sync(…)`` is the same."""
        return _checked(task)._enqueue_blocking(self, *args, **kwargs)

    def call(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Have a worker run it, and wait for the result. ``task.call_sync(…)`` is the same."""
        return _checked(task)._call_blocking(self, *args, **kwargs)

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[SyncHandle[Any]]:
        """Store many jobs in as few trips as possible."""
        given = self._client.packer.with_ids(check_jobs(jobs))
        answers = self._on(self._client, lambda client: client.insert(given), "app.enqueue_many(…)", brief=True)
        return [SyncHandle(self, handle) for handle in self.app.handles(given, answers)]

    def enqueue_named(self, task: str, args: dict[str, Any], **options: Unpack[JobOptions]) -> SyncHandle[Any]:
        """As ``App.enqueue_named``."""
        found = self.app.named(task, args)
        if isinstance(found, BatchTask):
            return found._enqueue_blocking(self, args, **options)
        return found.options(**options)._enqueue_blocking(self, **args)

    def drain(self, queues: Sequence[str] | None = None) -> None:
        """Run everything that is due, then return: on the loop that has the app open, or else in this thread."""
        no_loop("SyncApp.drain()", "await app.drain()")
        self._drains += 1
        try:
            if self._client.host is not None or self._client.runner is not None:
                self._do(self._client, partial(self.app.drain, queues), "app.drain()")
            elif not self._closed:
                self._drain_here(queues)
        finally:
            self._drains -= 1

    def _drain_here(self, queues: Sequence[str] | None) -> None:
        """On a loop of its own, which ends with the drain: calls of other threads must not go there."""

        async def drain() -> None:
            async with self.app:
                await self.app.drain(queues)

        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            if self._client.settle(loop, passing=True) is not loop and self._client.passing:
                raise ConfigError("a worker of this app already runs in this process")
            try:
                runner.run(drain())
            finally:
                self._client.unsettle(loop)

    def get(self, job_id: AnyId | JobKey) -> JobInfo:
        """As ``App.get``."""
        return self._on(self._client, lambda client: client.get(job_id), "app.get(…)")

    def wait(self, job_id: AnyId, timeout: Duration | None = "30s") -> Any:
        """As ``App.wait``."""
        serde_of = self.app.serde_of
        return self._try(
            self._client,
            lambda door: door.result_now(job_id, serde_of),
            lambda: self.app.wait(job_id, timeout),
            "app.wait(…)",
        )

    def cancel(self, job_id: AnyId | JobKey) -> JobState:
        """As ``App.cancel``."""
        return self._on(self._client, lambda client: client._alter_one(job_id, Cancel()), "app.cancel(…)")

    why = _blocking(App.why)
    reschedule = _blocking(App.reschedule)
    pause_job = _blocking(App.pause_job)
    resume_job = _blocking(App.resume_job)
    list_jobs = _blocking(Client.list_jobs, "app.client")
    stats = _blocking(Client.stats, "app.client")
    pause = _blocking(Client.pause, "app.client")
    resume = _blocking(Client.resume, "app.client")


def _checked(task: Task[P, R]) -> Task[P, R]:
    """A batch task takes the same calls, with a payload."""
    if not isinstance(task, Task | BatchTask):
        raise InvalidJob(f"expected a task and its arguments, got {shown(task)}; for jobs use enqueue_many")
    return task


class SyncQueue(_Face, Generic[PayloadT, R]):
    """A queue for threads, as ``SyncApp`` is for an app: what can be asked of a ``Queue``, without await.

    >>> from headrace import Queue, SyncQueue
    >>> images = SyncQueue(Queue[str, int]("images", "memory://"))
    >>> images.enqueue("cat", "cat.png")
    Queued(status='queued')
    >>> images.status("cat").state
    'queued'
    """

    def __init__(self, queue: Queue[PayloadT, R]) -> None:
        self.queue = queue

    @property
    def _client(self) -> Client:
        return self.queue.client

    def enqueue(self, id: str, payload: PayloadT, **options: Unpack[QueueOptions]) -> Queued | Duplicate | Completed[R]:
        """As ``Queue.enqueue``."""

        def work(client: Client) -> Coroutine[Any, Any, Queued | Duplicate | Completed[R]]:
            how = wrap_here if isinstance(client, Door) else wrap
            return self.queue.enqueue_on(client, id, payload, options, how)

        return self._on(self._client, work, "queue.enqueue(…)", brief=True)

    def enqueue_and_wait(
        self, id: str, payload: PayloadT, *, timeout: Duration | None = "30s", **options: Unpack[QueueOptions]
    ) -> R:
        """As ``Queue.enqueue_and_wait``."""
        call = partial(self.queue.enqueue_and_wait, id, payload, timeout=timeout, **options)
        return self._do(self._client, call, "queue.enqueue_and_wait(…)")

    def cancel(self, id: str) -> str:
        """As ``Queue.cancel``."""
        return self._on(self._client, lambda client: self.queue.cancel_on(client, id), "queue.cancel(…)")

    def status(self, id: str) -> JobStatus[R] | None:
        """As ``Queue.status``."""
        return self._on(self._client, lambda client: self.queue.status_on(client, id), "queue.status(…)")

    def result(self, id: str, default: R | None = None) -> R | None:
        """As ``Queue.result``."""
        return self._on(self._client, lambda client: self.queue.result_on(client, id, default), "queue.result(…)")

    def update_result_ttl(self, id: str, result_ttl: Duration) -> str:
        """As ``Queue.update_result_ttl``."""
        call = partial(self.queue.update_result_ttl, id, result_ttl)
        return self._do(self._client, call, "queue.update_result_ttl(…)")
