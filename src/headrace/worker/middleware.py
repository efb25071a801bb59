"""Middleware runs around every handler: ``async def (job, next) -> Outcome``, the first one outermost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from headrace.text import shown
from headrace.types import OUTCOMES, Done, Outcome
from headrace.worker.current import CurrentJob, current_job
from headrace.worker.job import Job

Next = Callable[[Job[Any]], Awaitable[Outcome]]
"""The rest of the chain: further middleware, and the handler.

>>> from typing import Any
>>> from headrace import Done, Job, Next, Outcome
>>> async def quiet(job: Job[Any], next: Next) -> Outcome:  # then: app.middleware(quiet)
...     return await next(job) if job.tenant != "retired" else Done()
"""
Middleware = Callable[[Job[Any], Next], Awaitable[Outcome]]
"""Gets the job and the rest of the chain. Returns an outcome: the one that ``next`` gave, or another.

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

PlainMiddleware = Callable[[CurrentJob, Callable[[], Outcome]], Outcome]
"""The same for plain handlers, in the thread, or the child process, that runs them.

>>> from collections.abc import Callable
>>> from headrace import App, CurrentJob, Outcome, SyncApp
>>> app = App("memory://")
>>> @app.plain_middleware
... def tidy(job: CurrentJob, next: Callable[[], Outcome]) -> Outcome:
...     print("begin", job.task)  # in the thread of the handler
...     try:
...         return next()
...     finally:
...         print("end")
>>> @app.task(name="work")
... def work() -> None: ...
>>> handle = work.enqueue_sync()
>>> SyncApp(app).drain()
begin work
end
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


def compose_plain(chain: Sequence[PlainMiddleware], function: Callable[[], Any]) -> Callable[[], Any]:
    """One call that runs the chain around a plain function, in the thread that calls it."""
    if not chain:
        return function
    call: Callable[[], Outcome] = partial(_as_outcome, function)
    for middleware in reversed(chain):
        call = partial(_plain_step, middleware, call)
    return call


def _as_outcome(function: Callable[[], Any]) -> Outcome:
    value = function()
    return value if isinstance(value, OUTCOMES) else Done(value)


def _plain_step(middleware: PlainMiddleware, call: Callable[[], Outcome]) -> Outcome:
    job = current_job()
    return _checked(middleware(job, call), middleware, "next()") if job is not None else call()


def _wrap(middleware: Middleware, call: Next) -> Next:
    async def step(job: Job[Any]) -> Outcome:
        return _checked(await middleware(job, call), middleware, "await next(job)")

    return step


def _checked(outcome: object, middleware: object, proper: str) -> Outcome:
    if isinstance(outcome, OUTCOMES):
        return outcome
    name = getattr(middleware, "__qualname__", type(middleware).__qualname__)
    raise TypeError(
        f"middleware {name} returned {shown(outcome)}, which is not an outcome; end it with: return {proper}"
    )


def compose_many(chain: Sequence[Middleware], handler: Many) -> Callable[[list[Job[Any]]], Awaitable[Ends]]:
    """One call that runs the chain around each job, and the handler once, for all jobs that reach it."""

    async def call(jobs: list[Job[Any]]) -> Ends:
        return _each(jobs, await handler(jobs))

    async def call_in_chain(jobs: list[Job[Any]]) -> Ends:
        return await _Chains(chain, call, jobs).run()

    return call_in_chain if chain else call


def _each(jobs: list[Job[Any]], answers: Any) -> Ends:
    outcomes = [None] * len(jobs) if answers is None else list(answers)
    if len(outcomes) != len(jobs):
        raise ValueError(f"expected one outcome per job, {len(jobs)} in all, got {len(outcomes)}")
    return [one if isinstance(one, (*OUTCOMES, BaseException)) else Done(one) for one in outcomes]


class _Chains:
    """Each job goes through the chain by itself. The handler starts when all have reached it or have ended before."""

    def __init__(
        self, chain: Sequence[Middleware], call: Callable[[list[Job[Any]]], Awaitable[Ends]], jobs: list[Job[Any]]
    ) -> None:
        self._chain = compose(chain, self._arrive)
        self._call = call
        self._jobs = jobs
        self._before = len(jobs)
        self._arrived: dict[int, tuple[Job[Any], asyncio.Future[Outcome]]] = {}
        self._complete = asyncio.Event()

    async def run(self) -> Ends:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(self._run_one(job)) for job in self._jobs]
            await self._complete.wait()
            if self._arrived:
                await self._handle()
        return [one.result() for one in runs]

    async def _run_one(self, job: Job[Any]) -> Outcome | BaseException:
        try:
            return await self._chain(job)
        except BaseException as error:
            if _cancelled(error):
                raise
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
        self._before -= 1
        if not self._before:
            self._complete.set()

    async def _handle(self) -> None:
        arrived = list(self._arrived.values())
        try:
            ends = await self._call([job for job, _ in arrived])
        except BaseException as error:
            if _cancelled(error):
                raise
            ends = [error] * len(arrived)
        for (_, future), end in zip(arrived, ends, strict=True):
            if future.done():
                continue
            if isinstance(end, BaseException):
                future.set_exception(end)
            else:
                future.set_result(end)


def _cancelled(error: BaseException) -> bool:
    """Whether the error cancels this task. One that middleware itself raised is a failure of one job."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
