"""Test jobs with Django's test cases: no worker, no store, and handlers that see the data of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from importlib import import_module
from random import Random
from typing import Any, Literal, TypeVar, cast
from unittest import TestCase

from asgiref.sync import AsyncToSync, SyncToAsync, async_to_sync, sync_to_async
from django.db import connections, transaction

from headrace.api.app import App
from headrace.api.background import drop, wait_on
from headrace.api.client import Client
from headrace.api.info import JobInfo
from headrace.api.sync import SyncApp
from headrace.backends.memory import MemoryBackend
from headrace.contrib.django.project import jobs_alias, project_app
from headrace.contrib.django.transactions import Deferred
from headrace.core.clock import ManualClock
from headrace.core.driving import drive
from headrace.errors import ConfigError
from headrace.seam.protocol import AsyncJoined
from headrace.seam.records import Delete, Inserted, InsertStatus, Row, Selector, Settlement
from headrace.testing.clients import MemoryClient
from headrace.testing.jobs import AppJobs
from headrace.text import without_secrets
from headrace.types import Outcome
from headrace.worker.executors import ProcessExecutor, ThreadExecutor
from headrace.worker.job import Job
from headrace.worker.middleware import Next
from headrace.worker.worker import Worker

R = TypeVar("R")


class JobsMixin:
    """For a ``TestCase`` or ``TransactionTestCase``: ``self.jobs`` has the jobs of each test.

        class OrderTests(JobsMixin, TestCase):
            def test_receipt(self) -> None:
                self.client.post("/orders/")
                self.jobs.assert_enqueued(receipt, count=1)
                self.jobs.run()

    Jobs are kept in memory, and the clock stands still until ``self.jobs.clock.advance("1h")``. A job of a transaction
    that rolls back is never there. ``run`` calls handlers in the thread of the test, on its own connection, so they see
    what the test has written, although that is never committed.
    """

    jobs: DjangoJobs

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _check_order(cls, JobsMixin)

    @classmethod
    def setUpClass(cls) -> None:
        """Called by unittest. What ``setUpTestData`` enqueues is in memory, too; each test begins without jobs."""
        cls.jobs = cls.enterClassContext(jobs_in_memory())  # type: ignore[attr-defined]
        super().setUpClass()  # type: ignore[misc]
        cls.jobs.all()

    def run(self, result: Any = None) -> Any:
        """Called by unittest: the whole test, with ``setUp`` and ``tearDown``."""
        with jobs_in_memory() as self.jobs:
            return super().run(result)  # type: ignore[misc]


class StoreMixin:
    """For a ``TransactionTestCase`` with jobs on the real store: that of the test database. ``jobs().drain()`` runs
    them as a worker does. After each test, all jobs are deleted and connections closed, so that Django can drop the
    database. Raises ``ConfigError`` if jobs are in no database of Django's: their store would be emptied."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _check_order(cls, StoreMixin)

    def run(self, result: Any = None) -> Any:
        """Called by unittest: the whole test, with ``setUp`` and ``tearDown``."""
        if jobs_alias() is None and not (url := project_app().client.settings.url).startswith("memory:"):
            raise ConfigError(
                f"StoreMixin deletes all jobs after each test, and {without_secrets(url)} is no test database of "
                "Django's; use JobsMixin, or name the DATABASE of the jobs in HEADRACE"
            )
        try:
            return super().run(result)  # type: ignore[misc]
        finally:
            _empty()


def _empty() -> None:
    """Delete all jobs, and disconnect."""

    async def delete() -> None:
        await app.client.alter_all(Selector(), Delete())

    app = project_app()
    with SyncApp(app) as store:
        store.wait_for(delete())
    drop(app.client.behind)


def _check_order(cls: type, mixin: type) -> None:
    """A test case that comes first runs its tests without the mixin, and so with the jobs of the real store."""
    order = cls.__mro__
    before = [one for one in order[: order.index(mixin)] if issubclass(one, TestCase) and not issubclass(one, mixin)]
    if before:
        name, first = mixin.__name__, before[0].__name__
        raise ConfigError(f"{cls.__name__}: {name} comes before {first}: class {cls.__name__}({name}, {first})")


@contextmanager
def jobs_in_memory() -> Iterator[DjangoJobs]:
    """The same without a test case, such as for a fixture of pytest."""
    app, clock = project_app(), ManualClock()
    pending = _Pending()
    client = _TestClient(app, MemoryBackend(now=clock.now), clock, pending)
    before, executors = app.client, app.executors
    app.client = client
    app.executors = lambda settings, polite: (_InThreadOfTest(), _InThreadOfTestToo())
    app._middleware.insert(0, client.around)
    try:
        yield DjangoJobs(app, client.memory, clock, pending)
    finally:
        app.client, app.executors = before, executors
        app._middleware.remove(client.around)
        client.leave()


class DjangoJobs(AppJobs):
    """What a test can see and do with the jobs of the project."""

    def __init__(self, app: App, backend: MemoryBackend, clock: ManualClock, pending: _Pending) -> None:
        super().__init__(app, backend, clock)
        self._pending = pending

    def all(self) -> list[JobInfo]:
        """Every job that the store knows, in the order of their enqueue."""
        self._pending.settle()
        return super().all()


class _Pending:
    """Jobs of transactions that are still open, as a test case never commits."""

    def __init__(self) -> None:
        self._connections = connections.all()
        """Those of the test's thread: an async test asks from another one."""

    def settle(self) -> None:
        """Store them. Django has dropped those of transactions that were rolled back."""
        for connection in {*self._connections, *connections.all(initialized_only=True)}:
            for _, function, *_ in list(connection.run_on_commit):
                if isinstance(function, Deferred):
                    function()


class _TestClient(MemoryClient):
    """On a memory store whose jobs are there when a transaction of Django commits."""

    def __init__(self, app: App, backend: MemoryBackend, clock: ManualClock, pending: _Pending) -> None:
        super().__init__(app, backend, clock, Random(0))
        self.memory, self._pending = backend, pending
        self._lent: list[Executor] = []
        """Run functions in threads that wait meanwhile; a handler that waits lends its thread again."""
        self._running = 0
        self._calls = threading.RLock()
        self.runner = self._run

    def sibling(self) -> Client:
        return type(self)(self._app, self.memory.sibling(), self._manual, self._pending)

    def _run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Have handlers called in this thread, which waits meanwhile. If the app is open elsewhere, that thread has
        them."""

        async def within() -> R:
            self._lent.append(AsyncToSync.executors.current)
            try:
                async with self._app:
                    return await call()
            finally:
                self._lent.pop()

        host = self.host
        if host is not None and host is not getattr(SyncToAsync.threadlocal, "main_event_loop", None):
            return wait_on(host, call)
        with self._calls:
            return async_to_sync(within)()

    async def around(self, job: Job[Any], next: Next) -> Outcome:
        """A middleware: the thread that was lent last is free. When a handler has ended, so have its transactions."""
        if self._lent:
            AsyncToSync.executors.current = self._lent[-1]
        self._running += 1
        try:
            return await next(job)
        finally:
            self._running -= 1
            if not self._running:
                self._pending.settle()

    def worker(self, *args: Any, **options: Any) -> Worker:
        """The jobs of open transactions are there when work begins."""
        self._pending.settle()
        return super().worker(*args, **options)

    @property
    def tx(self) -> _Transactions:
        return _Transactions()


class _Transactions:
    def begin(self) -> AbstractAsyncContextManager[AsyncJoined]:
        raise ConfigError("the store of a test has no transactions of its own; enqueue in those of Django")

    def join(self, connection: object) -> _Joined:
        return _Joined(connection)


class _Joined:
    """A transaction of Django's, as ``app.bind`` knows them."""

    blocks: Literal[True] = True

    def __init__(self, connection: Any) -> None:
        if not hasattr(connection, "in_atomic_block"):
            raise ConfigError(
                f"in this test, jobs are in memory: expected a connection of Django, got {type(connection).__name__}"
            )
        self._connection = connection

    async def insert(self, rows: Sequence[Row]) -> list[Inserted]:
        alias = self._connection.alias
        if not self._connection.in_atomic_block:
            raise ConfigError(f"Django's connection {alias!r} is in no atomic block; use transaction.atomic()")
        transaction.on_commit(Deferred(partial(_insert, rows)), using=alias)
        return [Inserted(InsertStatus.NEW, row.id) for row in rows]

    async def complete(self, settlement: Settlement) -> bool:
        """The worker of the test stores the outcome, with what the handler returns."""
        return True


def _insert(rows: Sequence[Row]) -> None:
    client = cast(_TestClient, project_app().client)
    drive(client.memory.insert(list(rows), client.clock.stamp()))


class _InThreadOfTest(ThreadExecutor):
    """Runs plain functions where the test runs, which waits meanwhile."""

    async def run(self, call: Callable[[], Any], task: str = "") -> Any:
        return await sync_to_async(call, thread_sensitive=True)()


class _InThreadOfTestToo(ProcessExecutor):
    """The same for functions that would run in a process."""

    async def run(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, _, name = function.partition(":")
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return await sync_to_async(getattr(found, "function", found), thread_sensitive=True)(*args, **kwargs)
