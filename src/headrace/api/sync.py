"""The same app for code without an event loop: on the loop that has it open, or else on one in the background."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future, wait
from functools import partial, update_wrapper
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar
from uuid import UUID

from headrace.api.app import App
from headrace.api.batch import BatchTask
from headrace.api.client import Client
from headrace.api.handle import Handle
from headrace.api.info import JobInfo
from headrace.api.task import Task
from headrace.core.validation import check_jobs
from headrace.errors import ConfigError, InvalidJob, Unavailable
from headrace.text import shown
from headrace.types import Duration, JobState, NewJob

P = ParamSpec("P")
R = TypeVar("R")

_GLANCE = 0.5
"""How often, in seconds, a waiting thread looks whether the loop that works for it still runs."""


class SyncHandle(Generic[R]):
    """A handle for code that blocks."""

    def __init__(self, owner: SyncApp, handle: Handle[R]) -> None:
        self._owner = owner
        self._handle = handle

    @property
    def id(self) -> UUID:
        return self._handle.id

    @property
    def duplicate(self) -> bool:
        """Whether the key was taken by another job."""
        return self._handle.duplicate

    @property
    def state(self) -> JobState:
        """The job's state when it was enqueued."""
        return self._handle.state

    def result(self, wait: Duration | None = "30s") -> R:
        """Wait for the result."""
        return self._owner._do(self._handle._client, lambda: self._handle.result(wait), "handle.result(…)")

    def info(self) -> JobInfo:
        """Everything that is known about the job now."""
        return self._owner._do(self._handle._client, self._handle.info, "handle.info()")

    def cancel(self) -> JobState:
        """Cancel the job, or ask it to stop if it runs. Returns its state. Raises ``JobNotFound``."""
        return self._owner._do(self._handle._client, self._handle.cancel, "handle.cancel()")

    def __repr__(self) -> str:
        return f"Sync{self._handle!r}"


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], path: str = "app"
) -> Callable[Concatenate[SyncApp, P], R]:
    """The same method for code that blocks; ``path`` leads to what has it."""
    where = f"{path}.{method.__name__}"
    find = attrgetter(where)

    def blocking(self: SyncApp, /, *args: P.args, **kwargs: P.kwargs) -> R:
        call: Callable[[], Coroutine[Any, Any, R]] = partial(find(self), *args, **kwargs)
        return self._do(self.app.client, call, f"{where}(…)")

    # Nothing else comes along: async methods carry a mark that says so.
    update_wrapper(blocking, method, updated=())
    return blocking


class SyncApp:
    """An app for threads: every call runs on an event loop and returns when it is done. Thread-safe.

    If the app is open, that is the loop that has it open: the worker's, in a plain task, or the web server's. Otherwise
    it is a loop of its own, in a background thread. Make one per process.

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
        self._own: _Loop | None = None
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> SyncApp:
        self._closed = False
        self._do(self.app.client, self.app.client.open, "app.client.open()")
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let its own loop, if there is one, finish, disconnect and end. An app that is open elsewhere stays open."""
        if self._own is not None and self._own.here:
            raise ConfigError(
                "SyncApp.close() would wait for the loop that it was called on; call it from another thread"
            )
        with self._lock:
            self._closed = True
            own, self._own = self._own, None
        if own is not None and own.usable:
            own.end(self.app)

    def wait_for(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine of the app, and wait for it."""

        async def call() -> R:
            return await work

        try:
            return self._do(self.app.client, call, "it")
        finally:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def _do(self, client: Client, call: Callable[[], Coroutine[Any, Any, R]], instead: str) -> R:
        """Run the coroutine of ``call`` at the client's home, and wait for it. ``instead``: what to await on a loop."""

        async def work() -> R:
            return await call()

        while True:
            loop, begun = self._loop_of(client, instead), work()
            try:
                future = asyncio.run_coroutine_threadsafe(begun, loop)
            except RuntimeError:
                begun.close()
                if not loop.is_closed():
                    raise
            else:
                return _outcome(future, loop)

    def _loop_of(self, client: Client, instead: str) -> asyncio.AbstractEventLoop:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ConfigError(f"SyncApp would block the event loop that runs here; await {instead} here")
        self._check_open()
        loop = client.home
        if loop is None:
            own = self._start()
            loop = client.settle(own.loop)
            if loop is own.loop:
                own.clients.add(client)
        if not loop.is_running():
            raise ConfigError("the app is open on an event loop that does not run; close it there first")
        return loop

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("this SyncApp is closed; make another, or enter it again")

    def _start(self) -> _Loop:
        with self._lock:
            self._check_open()
            if self._own is None or not self._own.usable:
                self._own = _Loop()
            return self._own

    def enqueue(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """Store a job; returns when it is durable."""
        handle = self._do(_client_of(task), lambda: task.enqueue(*args, **kwargs), f"{_short(task)}.enqueue(…)")
        return SyncHandle(self, handle)

    def call(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Have a worker run it, and wait for the result."""
        return self._do(_client_of(task), lambda: task.call(*args, **kwargs), f"{_short(task)}.call(…)")

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[SyncHandle[Any]]:
        """Store many jobs in as few trips as possible."""
        given = check_jobs(jobs)
        handles = self._do(self.app.client, lambda: self.app.enqueue_many(given), "app.enqueue_many(…)")
        return [SyncHandle(self, handle) for handle in handles]

    get = _blocking(App.get)
    why = _blocking(App.why)
    cancel = _blocking(App.cancel)
    reschedule = _blocking(App.reschedule)
    pause_job = _blocking(App.pause_job)
    resume_job = _blocking(App.resume_job)
    drain = _blocking(App.drain)
    list_jobs = _blocking(Client.list_jobs, "app.client")
    stats = _blocking(Client.stats, "app.client")
    pause = _blocking(Client.pause, "app.client")
    resume = _blocking(Client.resume, "app.client")


class _Loop:
    """An event loop in a thread of its own, and the clients that are at home there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clients: set[Client] = set()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self.loop.run_forever, name="headrace-sync", daemon=True)
        running = threading.Event()
        self.loop.call_soon(running.set)
        self._thread.start()
        running.wait()

    @property
    def usable(self) -> bool:
        """Whether it runs: a forked process has none of its parent's threads."""
        return self._pid == os.getpid() and self._thread.is_alive()

    @property
    def here(self) -> bool:
        return threading.current_thread() is self._thread

    def end(self, app: App) -> None:
        """Stop a worker, finish what was submitted, disconnect, wake waiting threads, and end."""
        try:
            asyncio.run_coroutine_threadsafe(self._leave(app), self.loop).result()
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    async def _leave(self, app: App) -> None:
        for client in self.clients:
            await (app.close() if client is app.client else client.close())
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()


def _client_of(task: Task[Any, Any]) -> Client:
    if not isinstance(task, Task | BatchTask):
        raise InvalidJob(f"expected a task and its arguments, got {shown(task)}; for jobs use enqueue_many")
    return task._owner.client


def _short(task: Task[Any, Any]) -> str:
    return task.name.rpartition(".")[2]


def _outcome(future: Future[R], loop: asyncio.AbstractEventLoop) -> R:
    """The result of the work, as long as its loop runs."""
    try:
        while not wait((future,), _GLANCE).done:
            if not loop.is_running():
                raise CancelledError
        return future.result()
    except CancelledError:
        raise Unavailable(
            "the event loop that had the app open has ended, or the SyncApp was closed; whether it was done is unknown"
        ) from None
    finally:
        future.cancel()
