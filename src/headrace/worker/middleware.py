"""Around every handler: ``async def (job, next) -> Outcome``, the first one outermost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.text import shown
from headrace.types import OUTCOMES, Done, Outcome
from headrace.worker.job import Job

Next = Callable[[Job[Any]], Awaitable[Outcome]]
"""The rest of the way: further middleware, and the handler.

>>> from typing import Any
>>> from headrace import Done, Job, Next, Outcome
>>> async def quiet(job: Job[Any], next: Next) -> Outcome:  # then: app.middleware(quiet)
...     return await next(job) if job.tenant != "retired" else Done()
"""
Middleware = Callable[[Job[Any], Next], Awaitable[Outcome]]
"""Gets the job and the rest of the way; returns the outcome, its own or the one it was given.

>>> import asyncio
>>> from typing import Any
>>> from headrace import App, Job, Middleware, Next, Outcome
>>> async def timed(job: Job[Any], next: Next) -> Outcome:
...     print("begin", job.task)
...     outcome = await next(job)
...     print("end", type(outcome).__name__)
...     return outcome
>>> chain: list[Middleware] = [timed]
>>> app = App("memory://", middleware=chain)
>>> @app.task(name="work")
... async def work() -> None: ...
>>> async def main() -> None:
...     async with app:
...         await work.enqueue()
...         await app.drain()
>>> asyncio.run(main())
begin work
end Done
"""

Many = Callable[[list[Job[Any]]], Awaitable[Any]]
"""A handler of many jobs: None, or one outcome, result or exception for each."""
Ends = list[Outcome | BaseException]


def compose(chain: Sequence[Middleware], innermost: Next) -> Next:
    """One call that runs the whole chain around ``innermost``."""
    call = innermost
    for middleware in reversed(chain):
        call = _wrap(middleware, call)
    return call


def _wrap(middleware: Middleware, call: Next) -> Next:
    async def step(job: Job[Any]) -> Outcome:
        outcome: object = await middleware(job, call)
        if isinstance(outcome, OUTCOMES):
            return outcome
        name = getattr(middleware, "__qualname__", type(middleware).__qualname__)
        raise TypeError(
            f"middleware {name} returned {shown(outcome)}, which is no outcome; end it with: return await next(job)"
        )

    return step


def compose_many(chain: Sequence[Middleware], handler: Many) -> Callable[[list[Job[Any]]], Awaitable[Ends]]:
    """One call that runs the chain around each job, and the handler once, for all jobs that get through to it."""

    async def call(jobs: list[Job[Any]]) -> Ends:
        return _each(jobs, await handler(jobs))

    async def call_in_chain(jobs: list[Job[Any]]) -> Ends:
        return await _Gathering(chain, call, jobs).run()

    return call_in_chain if chain else call


def _each(jobs: list[Job[Any]], answers: Any) -> Ends:
    outcomes = [None] * len(jobs) if answers is None else list(answers)
    if len(outcomes) != len(jobs):
        raise ValueError(f"expected one outcome per job, {len(jobs)} in all, got {len(outcomes)}")
    return [one if isinstance(one, (*OUTCOMES, BaseException)) else Done(one) for one in outcomes]


class _Gathering:
    """Each job walks through the chain by itself; the last one to arrive, or to turn back, starts the handler."""

    def __init__(
        self, chain: Sequence[Middleware], call: Callable[[list[Job[Any]]], Awaitable[Ends]], jobs: list[Job[Any]]
    ) -> None:
        self._walk = compose(chain, self._arrive)
        self._call = call
        self._jobs = jobs
        self._on_the_way = len(jobs)
        self._arrived: dict[int, tuple[Job[Any], asyncio.Future[Outcome]]] = {}
        self._complete = asyncio.Event()

    async def run(self) -> Ends:
        async with asyncio.TaskGroup() as group:
            walks = [group.create_task(self._see_through(job)) for job in self._jobs]
            await self._complete.wait()
            if self._arrived:
                await self._handle()
        return [walk.result() for walk in walks]

    async def _see_through(self, job: Job[Any]) -> Outcome | BaseException:
        try:
            return await self._walk(job)
        except asyncio.CancelledError as error:
            if _cancelled():
                raise
            return error
        except BaseException as error:
            return error
        finally:
            if id(job) not in self._arrived:
                self._one_less()

    async def _arrive(self, job: Job[Any]) -> Outcome:
        if self._complete.is_set():
            raise RuntimeError("the handler of a batch runs once: next was called a second time")
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._arrived[id(job)] = (job, future)
        self._one_less()
        return await future

    def _one_less(self) -> None:
        self._on_the_way -= 1
        if not self._on_the_way:
            self._complete.set()

    async def _handle(self) -> None:
        arrived = list(self._arrived.values())
        try:
            ends = await self._call([job for job, _ in arrived])
        except asyncio.CancelledError as error:
            if _cancelled():
                raise
            ends = [error] * len(arrived)
        except BaseException as error:
            ends = [error] * len(arrived)
        for (_, future), end in zip(arrived, ends, strict=True):
            if future.done():
                continue
            if isinstance(end, BaseException):
                future.set_exception(end)
            else:
                future.set_result(end)


def _cancelled() -> bool:
    """Whether somebody cancelled this task. A ``CancelledError`` that code of its own raised is one job's failure."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
