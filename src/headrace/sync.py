"""For code without an event loop: the same app, on one background loop thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import UUID

from headrace.app import App
from headrace.client import AnyId
from headrace.core.why import Why
from headrace.errors import ConfigError
from headrace.handle import Handle
from headrace.info import JobInfo
from headrace.records import JobKey, Selector, Stats
from headrace.task import Task
from headrace.types import Duration, JobState, NewJob

P = ParamSpec("P")
R = TypeVar("R")


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
        return self._owner.wait_for(self._handle.result(wait))

    def info(self) -> JobInfo:
        """All that is known of the job now."""
        return self._owner.wait_for(self._handle.info())

    def cancel(self) -> JobState | None:
        """Cancel the job, or ask for it if it runs: the state that it is in now, None if its record is gone."""
        return self._owner.wait_for(self._handle.cancel())

    def __repr__(self) -> str:
        return f"Sync{self._handle!r}"


class SyncApp:
    """An app for threads: every call runs on one background loop and returns when it is done. Thread-safe.

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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> SyncApp:
        self.wait_for(self.app.client.open())
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="headrace-sync", daemon=True
                )  # fmt: skip
                self._thread.start()
            return self._loop

    def wait_for(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine of the app on the background loop, and wait for it."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            loop = self._start()
        else:
            work.close()
            raise ConfigError("this would block the running event loop; await the app itself instead of SyncApp")
        future: Future[R] = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """Finish, disconnect, and end the thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self.app.client.close(), loop).result()
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def enqueue(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """Store a job; returns when it is durable."""
        return SyncHandle(self, self.wait_for(task.enqueue(*args, **kwargs)))

    def call(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Have a worker run it, and wait for the result."""
        return self.wait_for(task.call(*args, **kwargs))

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[SyncHandle[Any]]:
        """Store many jobs in as few trips as possible."""
        return [SyncHandle(self, handle) for handle in self.wait_for(self.app.enqueue_many(jobs))]

    def get(self, job_id: AnyId | JobKey) -> JobInfo:
        """All that is known of a job. Raises ``JobNotFound``."""
        return self.wait_for(self.app.get(job_id))

    def why(self, job_id: AnyId | JobKey) -> Why:
        """In one sentence, why the job is not running. Raises ``JobNotFound``."""
        return self.wait_for(self.app.why(job_id))

    def cancel(self, job_id: AnyId | JobKey) -> JobState | None:
        """Cancel a waiting job, or ask a running one to stop: the state that it is in now, None if it is unknown."""
        return self.wait_for(self.app.cancel(job_id))

    def reschedule(
        self, job_id: AnyId | JobKey, *, delay: Duration | None = None, at: datetime | None = None
    ) -> JobState | None:
        """Make a waiting job due so long from now, or at an instant; with neither, now. See ``App.reschedule``."""
        return self.wait_for(self.app.reschedule(job_id, delay=delay, at=at))

    def pause_job(self, job_id: AnyId | JobKey) -> JobState | None:
        """Keep a waiting job from being run until it is resumed: the state that it is in now, None if it is unknown."""
        return self.wait_for(self.app.pause_job(job_id))

    def resume_job(self, job_id: AnyId | JobKey) -> JobState | None:
        """Let a paused job go on, at the time that it had: the state that it is in now, None if it is unknown."""
        return self.wait_for(self.app.resume_job(job_id))

    def list_jobs(self, sel: Selector, limit: int = 100) -> list[JobInfo]:
        """Matching jobs, newest first."""
        return self.wait_for(self.app.client.list_jobs(sel, limit))

    def stats(self) -> Stats:
        """The store in numbers."""
        return self.wait_for(self.app.client.stats())

    def pause(self, queue: str, lasts: Duration | None = None) -> None:
        """No worker claims from the queue for so long, or until it is resumed."""
        self.wait_for(self.app.client.pause(queue, lasts))

    def resume(self, queue: str) -> None:
        """Workers may claim from the queue again."""
        self.wait_for(self.app.client.resume(queue))

    def drain(self, queues: Sequence[str] | None = None) -> None:
        """Run everything that is due, then return."""
        self.wait_for(self.app.drain(queues))
