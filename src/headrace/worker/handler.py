"""A task made ready to run: how to load its arguments, where it runs, and what happens to its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from headrace.payloads.codec import Serde
from headrace.seam.records import Leased
from headrace.types import Duration, Outcome
from headrace.worker.job import Job
from headrace.worker.middleware import Next
from headrace.worker.retry import RetryPolicy

Load = Callable[[Leased], Any]
"""The decoded payload of a leased job; raises ``PayloadError`` when it cannot be had."""


Ended = Outcome | BaseException
"""What came of a handler."""


class Ending(Struct):
    """What is about to be stored of a job that ends; an ``after`` hook may change it.

    >>> from typing import Any
    >>> from headrace import Ending, Job, Queue
    >>> queue = Queue[int, int]("squares", "memory://")
    >>> @queue.after
    ... async def keep_large_ones_longer(job: Job[Any], ending: Ending) -> None:
    ...     if ending.state == "completed" and ending.result > 1_000:
    ...         ending.result_ttl = "1d"
    """

    state: str
    result: Any = None
    error: BaseException | None = None
    result_ttl: Duration | None = None


After = Callable[[Job[Any], Ending], Awaitable[None]]
"""Runs when a job ends (completed or failed), before that is stored."""


class Handler(Struct, frozen=True, kw_only=True):
    """Everything the runner needs to know of a task. Exactly one of ``quick``, ``call`` and ``batch`` is set."""

    task: str
    load: Load
    retry: RetryPolicy
    result_serde: Serde[Any]
    result_ttl: int
    timeout: int | None = None
    quick: Callable[[Any], Awaitable[Any]] | None = None
    """The payload is all the handler needs: no ``Job`` is built."""
    call: Next | None = None
    """The whole chain of middleware around a handler that sees the job."""
    batch: Callable[[list[Job[Any]]], Awaitable[Sequence[Ended]]] | None = None
    """The whole chain of middleware around a handler of many jobs: one ending for each, in order."""
    batch_size: int = 1
    after: After | None = None
    threaded: bool = False
    """Whether it runs in a thread, which goes on when its job is given up on."""
