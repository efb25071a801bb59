"""A handle on a stored job, for code that blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from headrace.api.blocking import Blocking
from headrace.api.handle import Enqueued, Handle
from headrace.api.info import JobInfo
from headrace.api.stream import Part, next_parts
from headrace.core.progress import Progress
from headrace.payloads.codec import Serde
from headrace.seam.records import Cancel
from headrace.types import Duration, JobState

R = TypeVar("R")


class SyncHandle(Enqueued, Generic[R]):
    """A job that was enqueued, or the one that already held its key.

    >>> from headrace import App, SyncApp
    >>> app = App("memory://")
    >>> @app.task
    ... def double(n: int) -> int:
    ...     return 2 * n
    >>> handle = double.enqueue_sync(21)
    >>> SyncApp(app).drain()
    >>> handle.result()
    42
    """

    __slots__ = ("_blocking", "_handle")

    def __init__(self, blocking: Blocking, handle: Handle[R]) -> None:
        self._inserted = handle._inserted
        self._blocking = blocking
        self._handle = handle

    def result(self, wait: Duration | None = "30s") -> R:
        """Wait for the result; with 0, look once. Raises ``WaitTimeout``, or a ``JobError`` if there is none."""
        handle, job_id = self._handle, self._inserted.id
        serde: Serde[R] = handle._serde
        return self._blocking._try(
            handle._client,
            lambda door: door.result_now(job_id, lambda record: serde),
            lambda: handle.result(wait),
            "handle.result(…)",
        )

    def info(self) -> JobInfo:
        """Everything that is known about the job now."""
        job_id = self._inserted.id
        return self._blocking._on(self._handle._client, lambda client: client.get(job_id), "handle.info()")

    def progress(self) -> Progress | None:
        """How far the job has come, as its handler last said; None if it does not run or has not said it."""
        return self._blocking._do(self._handle._client, self._handle.progress, "handle.progress()")

    def stream(self) -> Iterator[Part]:
        """What the job sends (``job.send``) while it runs, until it has ended."""
        client, after = self._handle._client, (0, 0)

        async def following() -> list[Part]:
            return await next_parts(client.here, self._inserted.id, after)

        while parts := self._blocking._do(client, following, "handle.stream()"):
            yield from parts
            after = parts[-1].run, parts[-1].number

    def cancel(self) -> JobState:
        """Cancel the job, or ask it to stop if it runs. Returns its state. Raises ``JobNotFound``."""
        handle, job_id = self._handle, self._inserted.id
        return self._blocking._on(handle._client, lambda client: client._alter_one(job_id, Cancel()), "handle.cancel()")
