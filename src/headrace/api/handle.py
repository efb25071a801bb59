"""What an enqueue gives back: a handle on the stored job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar
from uuid import UUID

from headrace.api.client import Client
from headrace.api.info import JobInfo
from headrace.api.stream import Part, parts_of
from headrace.core.progress import Progress
from headrace.payloads.codec import Serde
from headrace.payloads.offload import decode_result
from headrace.seam.records import Inserted, InsertStatus
from headrace.types import Duration, JobState

R = TypeVar("R")


class Enqueued:
    """What is known at once of a job that was enqueued; the base of both kinds of handles."""

    __slots__ = ("_inserted",)

    _inserted: Inserted

    @property
    def id(self) -> UUID:
        return UUID(bytes=self._inserted.id)

    @property
    def duplicate(self) -> bool:
        """Whether the key was taken: no new job was stored, and this is the one that has the key."""
        return self._inserted.status in (InsertStatus.DUPLICATE, InsertStatus.REPLACED, InsertStatus.DONE)

    @property
    def replaced(self) -> bool:
        """Whether the job that has the key waits, and took on what ``on_duplicate`` says."""
        return self._inserted.status is InsertStatus.REPLACED

    @property
    def state(self) -> JobState:
        """The job's state when it was enqueued."""
        return self._inserted.state

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, {self._inserted.status.value})"


class Handle(Enqueued, Generic[R]):
    """A job that was enqueued, or the one that already held its key.

    >>> import asyncio
    >>> from headrace import App
    >>> async def main() -> int:
    ...     async with App("memory://") as app:
    ...         handle = await app.task(sum).enqueue([1, 2, 3])
    ...         await app.drain()
    ...         return await handle.result()
    >>> asyncio.run(main())
    6
    """

    __slots__ = ("_client", "_serde")

    def __init__(self, client: Client, inserted: Inserted, serde: Serde[Any]) -> None:
        self._inserted = inserted
        self._client = client.main
        self._serde = serde

    async def result(self, wait: Duration | None = "30s") -> R:
        """Wait for the result; with 0, look once. Raises ``WaitTimeout``, or a ``JobError`` if there is none."""
        done = self._inserted.status is InsertStatus.DONE
        client = self._client.here
        cell = self._inserted.result if done else (await client.wait(self._inserted.id, wait)).result
        return await decode_result(client.packer.envelope, cell, self._serde, self._inserted.id)

    async def info(self) -> JobInfo:
        """Everything that is known about the job now."""
        return await self._client.here.get(self._inserted.id)

    async def progress(self) -> Progress | None:
        """How far the job has come, as its handler last said; None if it does not run or has not said it."""
        return (await self.info()).progress

    def stream(self) -> AsyncIterator[Part]:
        """What the job sends (``job.send``) while it runs: ``async for part in handle.stream()``. It begins with the
        first part that is kept, whenever you begin to read, and ends when the job has ended, however it did;
        ``result()`` then has the rest."""
        return parts_of(self._client.here, self._inserted.id)

    async def cancel(self) -> JobState:
        """Cancel the job, or ask it to stop if it runs. Returns its state. Raises ``JobNotFound``."""
        return await self._client.here.cancel(self._inserted.id)
