"""The real client in the roles of producer and waiter."""

from __future__ import annotations

from contextlib import AsyncExitStack
from uuid import UUID

from headrace.api.client import Client
from headrace.core.config import Settings
from headrace.errors import JobCancelled, JobFailed, QueueFull, ResultExpired, Unavailable, WaitTimeout
from headrace.seam.records import Inserted, JobId, Replaces, Row
from headrace.testing.sim.cast.producer import Producer
from headrace.testing.sim.cast.waiter import Ended, Waiter
from headrace.types import JobState, NewJob, Sections


class CoreProducer(Producer):
    """Enqueues with ``headrace.api.client.Client``: alone through its batcher, in bulk past it."""

    _client: Client | None = None

    async def enqueue(self, rows: list[Row]) -> list[Inserted] | None:
        if self._client is None:
            self._client = Client(self._backend, Settings(patience=20), clock=self._clock, rng=self._rng)
        self._world.known += [row.id for row in rows]
        jobs = [new_job(row) for row in rows]
        try:
            return [await self._client.enqueue(jobs[0])] if len(jobs) == 1 else await self._client.insert(jobs)
        except (Unavailable, QueueFull):
            return None


class CoreWaiter(Waiter):
    """Calls and waits with ``headrace.api.client.Client``."""

    async def prepare(self, stack: AsyncExitStack) -> None:
        self._client = Client(self._backend, Settings(patience=20), clock=self._clock, rng=self._rng)
        stack.push_async_callback(self._client.close)

    async def ask(self, row: Row) -> JobId | None:
        try:
            return (await self._client.enqueue(new_job(row), reply=True)).id
        except (Unavailable, QueueFull):
            return None

    async def await_end(self, job_id: JobId, timeout: int) -> Ended | None:
        try:
            record = await self._client.wait(job_id, timeout / 1e6)
        except WaitTimeout:
            return None
        except JobFailed:
            return JobState.FAILED, None
        except JobCancelled:
            return JobState.CANCELLED, None
        except ResultExpired:
            return JobState.COMPLETED, None
        return record.state, record.result


_ON_DUPLICATE = {
    Replaces.NOTHING: "keep",
    Replaces.CELLS: "replace arguments",
    Replaces.TIME: "replace time",
    Replaces.BOTH: "replace",
}


def new_job(row: Row) -> NewJob:
    """What a user would have asked for to get this row."""
    return NewJob(
        task=row.task,
        queue=row.queue,
        sections=Sections(**row.cells),
        key=row.key,
        tenant=row.tenant,
        group=row.group,
        priority=row.priority,
        delay=row.delay / 1e6,
        max_attempts=row.max_attempts,
        timeout=None if row.timeout is None else row.timeout / 1e6,
        expires=None if row.expires is None else row.expires / 1e6,
        result_ttl=None if row.result_ttl is None else row.result_ttl / 1e6,
        headers=None if row.headers is None else {"request": row.headers.decode()},
        on_failed="return" if row.hold_failed else "run",
        on_duplicate=_ON_DUPLICATE[row.replaces],
        id=UUID(bytes=row.id),
    )
