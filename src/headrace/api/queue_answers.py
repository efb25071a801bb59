"""What a queue answers: values, not exceptions."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct

from headrace.errors import JobFailed
from headrace.types import JobState

R = TypeVar("R")


class Queued(Struct, frozen=True):
    """A new job was stored.

    >>> import asyncio
    >>> from headrace import Queue, Queued
    >>> async def main() -> bool:
    ...     async with Queue[str, int]("lengths", "memory://") as queue:
    ...         return await queue.enqueue("job-1", "hello") == Queued()
    >>> asyncio.run(main())
    True
    """

    status: str = "queued"


class Duplicate(Struct, frozen=True):
    """The id is taken by a job that is not done: ``state`` is queued, processing, failing or (if asked for) failed; or
    completed, if retention has removed the job and its result, but not its id.

    >>> import asyncio
    >>> from headrace import Queue
    >>> async def main() -> None:
    ...     async with Queue[str, int]("lengths", "memory://") as queue:
    ...         await queue.enqueue("job-1", "hello")
    ...         print(await queue.enqueue("job-1", "hello"))
    >>> asyncio.run(main())
    Duplicate(state='queued', attempts=0, status='duplicate')
    """

    state: str
    attempts: int = 0
    status: str = "duplicate"
    """``"replaced"``: it waits, and took on what ``on_duplicate`` says."""


class Completed(Struct, Generic[R], frozen=True):
    """The id's job is done, and this is its cached result.

    >>> from headrace import Completed, Duplicate, Queued
    >>> def reply(answer: Queued | Duplicate | Completed[int]) -> str:  # reply(await queue.enqueue(…))
    ...     match answer:
    ...         case Completed(result):
    ...             return f"it is {result}"
    ...         case _:
    ...             return "ask again later"
    >>> reply(Completed(5)), reply(Queued())
    ('it is 5', 'ask again later')
    """

    result: R
    status: str = "completed"


class JobStatus(Struct, Generic[R], frozen=True):
    """Where a job is, in a queue's words: queued, processing, failing, completed, failed, cancelled.

    >>> import asyncio
    >>> from headrace import JobStatus, Queue
    >>> async def main() -> JobStatus[int] | None:
    ...     async with Queue[str, int]("lengths", "memory://") as queue:
    ...         await queue.enqueue("job-1", "hello")
    ...         return await queue.status("job-1")
    >>> asyncio.run(main()).state
    'queued'
    """

    id: str
    state: str
    created_at: datetime
    attempts: int
    result: R | None = None
    error: JobFailed | None = None
    worker: str = ""
    since: datetime | None = None
    """When it came into this state: began to run, or ended; for one that waits, when it last ran, else its enqueue."""


def state_word(state: JobState, attempt: int) -> str:
    """A stored state in a queue's words.

    >>> state_word(JobState.AVAILABLE, 1)
    'failing'
    """
    if state in (JobState.AVAILABLE, JobState.PAUSED):
        return "failing" if attempt else "queued"
    return "processing" if state is JobState.RUNNING else state.value
