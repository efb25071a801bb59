"""Test jobs with Django's test cases: no worker, no store, and handlers that see the data of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from importlib import import_module
from random import Random
from typing import Any, Literal

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from headrace.api.batch import BatchTask
from headrace.api.info import JobInfo
from headrace.api.task import Task
from headrace.backends.memory import MemoryBackend
from headrace.contrib.django.project import jobs_alias, project_app
from headrace.contrib.django.transactions import Deferred, jobs
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError
from headrace.seam.protocol import AsyncJoined
from headrace.seam.records import Delete, Inserted, InsertStatus, Row, Selector, Settlement
from headrace.testing.clients import MemoryClient
from headrace.testing.jobs import AppJobs
from headrace.text import without_secrets
from headrace.worker.executors import ProcessExecutor, ThreadExecutor


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

    def run(self, result: Any = None) -> Any:
        """Called by unittest: the whole test, with ``setUp`` and ``tearDown``."""
        with jobs_in_memory() as self.jobs:
            return super().run(result)  # type: ignore[misc]


class StoreMixin:
    """For a ``TransactionTestCase`` with jobs on the real store: that of the test database. ``jobs().drain()`` runs
    them as a worker does. After each test, all jobs are deleted and connections closed, so that Django can drop the
    database. Raises ``ConfigError`` if jobs are in no database of Django's: their store would be emptied."""

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
            jobs().wait_for(_delete_all())
            _forget()


async def _delete_all() -> None:
    await project_app().client.alter_all(Selector(), Delete())


@contextmanager
def jobs_in_memory() -> Iterator[DjangoJobs]:
    """The same without a test case, such as for a fixture of pytest."""
    app, clock = project_app(), ManualClock()
    backend = MemoryBackend(now=clock.now)
    before, executors = app.client, app.executors
    _forget()
    app.client = _TestClient(app, backend, clock, Random(0))
    app.executors = lambda settings, polite: (_InThreadOfTest(), _InThreadOfTestToo())
    try:
        yield DjangoJobs(app, backend, clock)
    finally:
        _forget()
        app.client, app.executors = before, executors


class DjangoJobs(AppJobs):
    """What a test can see and do with the jobs of the project."""

    def run(self) -> None:
        """Run everything that is due now, and what that makes due, then return. A job that failed is due again later:
        advance the clock, and run again."""
        self._settle()
        while True:
            _forget()
            async_to_sync(self._drain)()
            if not self._settle():
                return

    async def _drain(self) -> None:
        async with self.app:
            await self.app.drain()

    def all(self) -> list[JobInfo]:
        """Every job that the store knows, in the order of their enqueue."""
        self._settle()
        return super().all()

    def enqueued(self, task: Task[Any, Any] | BatchTask[Any] | str | None = None) -> list[JobInfo]:
        """Jobs that wait, scheduled ones included; of one task, or of all."""
        self._settle()
        return super().enqueued(task)

    def _settle(self) -> bool:
        """Store the jobs of transactions that are still open: a test case never commits. Returns whether there were
        any. Django has dropped those of transactions that were rolled back."""
        before = len(self._backend.store.jobs)
        for connection in connections.all(initialized_only=True):
            for _, function, *_ in list(connection.run_on_commit):
                if isinstance(function, Deferred):
                    function()
        return len(self._backend.store.jobs) > before


def _forget() -> None:
    """Leave the loop in the background; the next call opens it again."""
    jobs().close()
    jobs.cache_clear()


class _TestClient(MemoryClient):
    """On a memory store whose jobs are there when a transaction of Django commits."""

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
    client = project_app().client

    async def insert() -> None:
        await (await client.backend()).insert(list(rows), client.clock.stamp())

    jobs().wait_for(insert())


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
