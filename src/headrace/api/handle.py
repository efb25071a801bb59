"""What an enqueue gives back: a handle on the stored job."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from uuid import UUID

from headrace.api.client import Client
from headrace.api.info import JobInfo
from headrace.payloads.codec import Serde
from headrace.payloads.offload import decode
from headrace.seam.records import Inserted, InsertStatus
from headrace.types import Duration, JobState

R = TypeVar("R")


class Handle(Generic[R]):
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

    __slots__ = ("_client", "_inserted", "_serde")

    def __init__(self, client: Client, inserted: Inserted, serde: Serde[Any]) -> None:
        self._client = client
        self._inserted = inserted
        self._serde = serde

    @property
    def id(self) -> UUID:
        return UUID(bytes=self._inserted.id)

    @property
    def duplicate(self) -> bool:
        """Whether the key was taken: no new job was stored, and this is the one that has the key."""
        return self._inserted.status in (InsertStatus.DUPLICATE, InsertStatus.DONE)

    @property
    def state(self) -> JobState:
        """The job's state when it was enqueued."""
        return self._inserted.state

    async def result(self, wait: Duration | None = "30s") -> R:
        """Wait for the result; with 0, look once. Raises ``WaitTimeout``, or a ``JobError`` if there is none."""
        done = self._inserted.status is InsertStatus.DONE
        cell = self._inserted.result if done else (await self._client.wait(self._inserted.id, wait)).result
        return await decode(self._client.packer.envelope, cell, self._serde, "result")

    async def info(self) -> JobInfo:
        """Everything that is known about the job now."""
        return await self._client.get(self._inserted.id)

    async def cancel(self) -> JobState:
        """Cancel the job, or ask it to stop if it runs. Returns its state. Raises ``JobNotFound``."""
        return await self._client.cancel(self._inserted.id)

    def __repr__(self) -> str:
        return f"Handle({self.id}, {self._inserted.status.value})"
