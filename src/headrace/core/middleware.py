"""Around every handler: ``async def (job, next) -> Outcome``, the first one outermost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.job import Job
from headrace.types import Outcome

Next = Callable[[Job[Any]], Awaitable[Outcome]]
Middleware = Callable[[Job[Any], Next], Awaitable[Outcome]]
"""Gets the job and the rest of the way; returns the outcome, its own or the one it was given."""


def compose(chain: Sequence[Middleware], innermost: Next) -> Next:
    """One call that runs the whole chain around ``innermost``."""
    call = innermost
    for middleware in reversed(chain):
        call = _wrap(middleware, call)
    return call


def _wrap(middleware: Middleware, call: Next) -> Next:
    async def step(job: Job[Any]) -> Outcome:
        return await middleware(job, call)

    return step
