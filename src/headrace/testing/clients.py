"""The client of an app under test: on a memory store, and beside the loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from random import Random
from uuid import UUID

from msgspec.structs import replace

from headrace.api.app import App
from headrace.api.background import drop
from headrace.api.client import AnyId, Client
from headrace.backends.memory import MemoryBackend
from headrace.core.clock import ManualClock
from headrace.core.durations import micros
from headrace.errors import ConfigError, WaitTimeout
from headrace.limits.gate import Admission
from headrace.seam.protocol import Backend, Left, Transactions
from headrace.seam.records import Inserted, Record
from headrace.types import Duration, NewJob
from headrace.worker.failures import failures

_within: ContextVar[bool] = ContextVar("headrace_within", default=False)
"""Whether this is a handler that a client runs by itself, or something that one has called."""


class MemoryClient(Client):
    """A client for tests, on a clock that stands still. Nobody works beside a test, so waiting for a job runs what is
    due."""

    _draining: asyncio.Event | None = None

    def __init__(self, app: App, backend: MemoryBackend, clock: ManualClock, rng: Random) -> None:
        settings = replace(app.client.settings, url="memory://")
        super().__init__(backend, settings, clock=clock, rng=rng, heartbeat_thread=False)
        self._app, self._memory, self._manual = app, backend, clock
        try:
            self._beside: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._beside = None

    @property
    def blocking(self) -> Callable[[Left], Backend] | None:
        return lambda left: self._memory.sibling()

    def leave(self) -> None:
        """Close what it has opened in the background."""
        if self._behind is not None:
            drop(self._behind)

    def sibling(self) -> Client:
        """One for the loop in the background, which is beside nothing."""
        other = type(self)(self._app, self._memory.sibling(), self._manual, self._rng)
        other._beside = None
        return other

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """Unless it is open elsewhere, the loop of the test: threads beside it use that."""
        beside = self._beside if self._beside is not None and self._beside.is_running() else None
        return super().home or beside

    @property
    def tx(self) -> Transactions | None:
        raise ConfigError(
            "in memory there are no transactions to enqueue in; test this with the app as it is, on a PostgreSQL "
            "database of its own that `headrace migrate up` has made the schema in: see docs/howto/testing.md"
        )

    async def wait(self, job_id: AnyId, timeout: Duration | None = "30s", *, watch: bool = True) -> Record:
        """Raises ``WaitTimeout`` at once for a job that nobody will run."""
        looks = timeout is not None and micros(timeout, "timeout") == 0
        if looks or _within.get() or self._app.working:
            return await super().wait(job_id, timeout, watch=watch)
        await self._drain()
        record = await self.fetch(job_id)
        if record is not None and not record.state.terminal and not self._app.working:
            told = failures(record.error)
            failed = f" after {told[-1].type}: {told[-1].message}" if told else ""
            why = (await self.why(job_id)).sentence
            raise WaitTimeout(
                f"nobody works beside the test, and this job was left{failed}: {why}. If it is for later, advance "
                "the clock, then wait for it",
                job_id=str(UUID(bytes=record.id)),
            )
        return await super().wait(job_id, timeout, watch=watch)

    async def _drain(self) -> None:
        """Run what is due, unless a handler asks for it or a worker does it."""
        if _within.get():
            return
        while self._draining is not None:
            await self._draining.wait()
        if self._app.working:
            return
        self._draining = ended = asyncio.Event()
        token = _within.set(True)
        try:
            await self._app.drain()
        finally:
            _within.reset(token)
            self._draining = None
            ended.set()


class InlineClient(MemoryClient):
    """Runs what is due before an enqueue returns. Within a handler nothing more is run: its own worker does that."""

    blocking = None

    async def _enqueue(self, job: NewJob, *, reply: bool, at_gate: list[Admission] | None = None) -> Inserted:
        inserted = await super()._enqueue(job, reply=reply, at_gate=at_gate)
        await self._run_due()
        return inserted

    async def insert(self, jobs: Iterable[NewJob]) -> list[Inserted]:
        inserted = await super().insert(jobs)
        await self._run_due()
        return inserted

    async def _run_due(self) -> None:
        """A blocking call of an async test holds up the loop of the test, which handlers may need: it runs nothing."""
        test = self.main.home if self.main is not self else None
        if test is None or not test.is_running():
            await self._drain()
