"""An app under test: its jobs in memory, its clock in your hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any

import msgspec

from headrace.api.app import App
from headrace.api.batch import BatchTask
from headrace.api.info import DETAILS, JobInfo, job_info
from headrace.api.loop_guard import needs_loop, no_loop
from headrace.api.queue import Queue
from headrace.api.sync import SyncApp
from headrace.api.task import Task
from headrace.backends.memory import MemoryBackend
from headrace.core.clock import ManualClock
from headrace.errors import ConfigError
from headrace.testing.clients import InlineClient, MemoryClient
from headrace.text import shown
from headrace.types import JobState

_WAITING = frozenset({JobState.AVAILABLE, JobState.PAUSED})


class AppJobs:
    """What a test can see and do with the jobs of an app.

    Jobs go through the same packing, storing and decoding as in production; only the store is in memory and the clock
    stands still until ``clock.advance``.
    """

    def __init__(self, app: App, backend: MemoryBackend, clock: ManualClock) -> None:
        self.app = app
        self.clock = clock
        self._backend = backend

    @needs_loop("jobs.run()")
    async def drain(self) -> None:
        """Run everything that is due now, and what that makes due, then return. A job that failed is due again later:
        advance the clock, and drain again."""
        await self.app.drain()

    def run(self) -> None:
        """``drain`` for plain tests."""
        no_loop("jobs.run()", "await jobs.drain()")
        SyncApp(self.app).drain()

    def all(self) -> list[JobInfo]:
        """Every job that the store knows, in the order of their enqueue."""
        store = self._backend.store
        envelope = self.app.client.packer.envelope
        return [job_info(store.record(entry, DETAILS, self.clock.now()), envelope) for entry in store.jobs.values()]

    def enqueued(self, task: Task[Any, Any] | BatchTask[Any] | str | None = None) -> list[JobInfo]:
        """Jobs that wait, scheduled ones included; of one task, or of all."""
        name = task if isinstance(task, str) or task is None else task.name
        return [job for job in self.all() if job.state in _WAITING and name in (None, job.task)]

    def assert_enqueued(
        self,
        task: Task[Any, Any] | BatchTask[Any] | str,
        *,
        args: Any = None,
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        count: int | None = None,
    ) -> list[JobInfo]:
        """Jobs of the task wait that match everything given: ``count`` of them, or at least one. Returns them.

        ``args`` is compared as plain data; a mapping only for the arguments that it names. Of a batch task, ``args`` is
        the payload.
        """
        waiting = self.enqueued(task)
        wanted = {"queue": queue, "key": key, "tenant": tenant}
        found = [
            job
            for job in waiting
            if all(value is None or getattr(job, field) == value for field, value in wanted.items())
            and (args is None or _fits(job.args, msgspec.to_builtins(args, str_keys=True)))
        ]
        if len(found) != count if count is not None else not found:
            name = task if isinstance(task, str) else task.name
            given = {field: value for field, value in ({"args": args} | wanted).items() if value is not None}
            expected = f"{count} job(s)" if count is not None else "a job"
            lines = [f"  {job.task} queue={job.queue} key={job.key} args={job.args}" for job in self.enqueued()]
            listing = "\n".join(lines) or "  nothing"
            raise AssertionError(f"expected {expected} of {name} with {given}, found {len(found)}; waiting:\n{listing}")
        return found

    def assert_none_failed(self) -> None:
        """No attempt of any job has failed so far, also if it is to be retried, or has been."""
        told = [
            f"{job.task} {job.id}, {job.state}: {one.type}: {one.message}\n{one.traceback}".rstrip()
            for job in self.all()
            for one in job.failures
        ]
        if told:
            raise AssertionError(f"expected that no attempt failed; {len(told)} did:\n" + "\n".join(told))


def _fits(stored: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict) or not isinstance(stored, dict):
        return bool(stored == wanted)
    return all(name in stored and stored[name] == value for name, value in wanted.items())


def in_memory(app: App, *, inline: bool = False, seed: int = 0) -> AbstractContextManager[AppJobs]:
    """Put the app on a fresh memory store with a clock that stands still, for as long as the block lasts.

    With ``inline`` every enqueue outside of a handler also runs what is due before it returns. Without it, only those
    who wait for a result do, and ``drain`` and ``run``.
    """
    _check(app)
    return _in_memory(app, inline=inline, seed=seed)


def _check(app: object) -> None:
    if isinstance(app, Queue):
        raise ConfigError(f"expected an App, got Queue {app.name!r}; test that on Queue({app.name!r}, 'memory://')")
    if not isinstance(app, App):
        raise ConfigError(f"expected an App, got {shown(app)}")
    if app.tested_by is not None:
        raise ConfigError(
            "handlers of this app are to see what the test has written, so they run in the thread of the test; use "
            f"{app.tested_by}"
        )


@contextmanager
def _in_memory(app: App, *, inline: bool, seed: int) -> Iterator[AppJobs]:
    clock = ManualClock()
    backend = MemoryBackend(now=clock.now)
    kind = InlineClient if inline else MemoryClient
    client = kind(app, backend, clock, Random(seed))
    before, app.client = app.client, client
    try:
        yield AppJobs(app, backend, clock)
    finally:
        app.client = before
        client.leave()
