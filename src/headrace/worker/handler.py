"""A task as a worker runs it: how its arguments are loaded, what is called, and its options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from msgspec import Struct

from headrace.payloads.codec import Serde
from headrace.seam.records import Leased
from headrace.types import OUTCOMES, Duration, Outcome
from headrace.worker.job import Job
from headrace.worker.retry import RetryPolicy

Load = Callable[[Leased], Any]
"""Gives the decoded payload of a leased job, or raises ``PayloadError``."""


Ended = Outcome | BaseException
"""What came of a handler."""


def is_outcome(value: object) -> TypeGuard[Outcome]:
    """Whether a handler returned an outcome, and not just its result. The first question is there for speed: the class
    of each outcome costs as much as it, and most results are no ``Struct`` at all."""
    return isinstance(value, Struct) and isinstance(value, OUTCOMES)


class Ending(Struct):
    """What is about to be stored of a job that ends. An ``after`` hook may change it.

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


def wanted(handlers: Iterable[Handler]) -> frozenset[str] | None:
    """The sections that a claim for these handlers brings along; None: all."""
    found = {"parameters"}
    for handler in handlers:
        if handler.sections is None:
            return None
        found |= handler.sections
    return frozenset(found)


def sections_of(handlers: Mapping[str, Handler], task: str) -> frozenset[str] | None:
    """The sections that jobs of a task come with, beside ``parameters``; None: all."""
    handler = handlers.get(task)
    return frozenset() if handler is None or handler.quick else handler.sections


class Handler(Struct, frozen=True, kw_only=True):
    """Everything a worker needs to know of a task. Either ``call`` or ``batch`` is set."""

    task: str
    load: Load
    retry: RetryPolicy
    result_serde: Serde[Any]
    result_ttl: int
    timeout: int | None = None
    sections: frozenset[str] | None = None
    """Those that its jobs come with, besides ``parameters``; None: all."""
    call: Callable[[Any], Awaitable[Any]] | None = None
    """The whole chain of middleware around a handler of one job."""
    quick: bool = False
    """Whether ``call`` takes only the payload. For others, a ``Job`` is built."""
    batch: Callable[[list[Job[Any]]], Awaitable[Sequence[Ended]]] | None = None
    """The whole chain of middleware around a handler of many jobs: one ending for each, in order."""
    batch_size: int = 1
    after: After | None = None
    threaded: bool = False
    """Whether it runs in a thread, which goes on if the job is given up on."""
