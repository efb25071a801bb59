"""The app: tasks on one store, and the worker that runs them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from headrace.api.batch import BatchTask
from headrace.api.bind import AsyncBound, AsyncConnection, Binding, Bound, SyncConnection
from headrace.api.client import Client, JobCalls
from headrace.api.connection import connect
from headrace.api.handle import Handle
from headrace.api.loop_guard import needs_loop, no_loop
from headrace.api.options import BatchOptions, JobOptions, TaskOptions, known
from headrace.api.signals import Stopper
from headrace.api.task import Task
from headrace.core.config import Settings
from headrace.core.events import Observer
from headrace.core.names import check_name
from headrace.core.validation import check_jobs
from headrace.errors import ConfigError, InvalidJob, UnknownTask
from headrace.limits.policies import Policies
from headrace.payloads.codec import JsonSerde
from headrace.schedules.planner import IntervalFunction
from headrace.schedules.schedules import Schedules
from headrace.schedules.spec import Cron, CronOptions, Every, EveryOptions, check_job, define, template_of
from headrace.text import shown
from headrace.types import Duration, NewJob
from headrace.worker.executors import ProcessExecutor, ThreadExecutor
from headrace.worker.handler import Handler
from headrace.worker.job import Job
from headrace.worker.middleware import Middleware
from headrace.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W", bound=Observer)


class App(JobCalls):
    """Tasks and the store that their jobs live in.

    >>> app = App("memory://")
    >>> @app.task(queue="mail")
    ... async def welcome(user_id: int) -> str:
    ...     return f"hello {user_id}"
    >>> async def main():
    ...     async with app:
    ...         await welcome.enqueue(42)
    ...         await app.drain()
    >>> asyncio.run(main())
    """

    def __init__(
        self,
        url: str | Settings | Client | None = None,
        *,
        middleware: Sequence[Middleware] = (),
        **overrides: Any,
    ) -> None:
        if isinstance(url, Client) and overrides:
            raise ConfigError(f"expected a client or settings, got both: {sorted(overrides)[0]!r} beside a Client")
        self.client = url if isinstance(url, Client) else connect(url, **overrides)
        self.tasks: dict[str, Task[Any, Any] | BatchTask[Any]] = {}
        self._declared: dict[str, Every | Cron] = {}
        self._intervals: dict[str, IntervalFunction] = {}
        self.schedules = Schedules(self, self._intervals)
        self.policies = Policies(self, self.tasks)
        self._middleware = list(middleware)
        self._worker: Worker | None = None
        self._working: asyncio.Event | None = None
        self._guest = False
        self._stops = 0

    def _access(self) -> Client:
        return self.client

    # -- registering

    @overload
    def task(self, function: Callable[Concatenate[Job[Any], P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Job[Any], P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Register a function as a task. Async functions run on the worker's loop, plain ones in a thread
        (``executor="process"``: in a process). A first parameter annotated ``Job`` gets the job itself."""
        known(options, TaskOptions, "@app.task: ")
        if (executor := options.get("executor")) not in (None, "thread", "process"):
            raise ConfigError(f"executor: expected 'thread' or 'process', got {executor!r}")

        def register(function: Callable[..., Any]) -> Task[Any, Any]:
            task: Task[Any, Any] = Task(self, function, _name_of(function, options.get("name")), options)
            self._add(task)
            return task

        return register if function is None else register(function)

    @overload
    def batch(self, function: Callable[[list[Job[T]]], Awaitable[Any]], /) -> BatchTask[T]: ...
    @overload
    def batch(
        self, function: None = None, /, **options: Unpack[BatchOptions]
    ) -> Callable[[Callable[[list[Job[T]]], Awaitable[Any]]], BatchTask[T]]: ...
    def batch(
        self, function: Callable[[list[Job[Any]]], Awaitable[Any]] | None = None, /, **options: Unpack[BatchOptions]
    ) -> Any:
        """Register an async handler of many jobs at once: as many as there are, at most ``size`` (100 by default)."""
        known(options, BatchOptions, "@app.batch: ")

        def register(function: Callable[[list[Job[Any]]], Awaitable[Any]]) -> BatchTask[Any]:
            batch: BatchTask[Any] = BatchTask(self, function, _name_of(function, options.get("name")), options)
            self._add(batch)
            return batch

        return register if function is None else register(function)

    def _add(self, task: Task[Any, Any] | BatchTask[Any]) -> None:
        if task.name in self.tasks:
            raise ConfigError(f"a task named {task.name!r} is registered already; give one of them another name=")
        self.tasks[task.name] = task

    def every(self, interval: Duration, job: Task[[], Any] | NewJob, **options: Unpack[EveryOptions]) -> str:
        """Declare a schedule at equal intervals: of a task, or of a job with arguments from ``task.job(…)``. Every
        worker that starts puts it in the store, where it is kept once. Options as for ``Every``. Returns its name."""
        return self._declare(Every, interval, job, options)

    def cron(self, expression: str, job: Task[[], Any] | NewJob, **options: Unpack[CronOptions]) -> str:
        """Declare a schedule by the clock, as ``every`` does; options as for ``Cron``, including ``tz``."""
        return self._declare(Cron, expression, job, options)

    def _declare(self, kind: Any, when: object, job: object, options: Mapping[str, Any]) -> str:
        made = check_job(job.job() if isinstance(job, Task) else job)
        spec = kind(when, made, **options)
        define(spec, template_of(self.client.packer.pack(made)), 0)
        name = check_name(made.task if spec.name is None else spec.name, "name")
        if name in self._declared:
            raise ConfigError(f"a schedule named {shown(name)} is declared already; give one of them another name=")
        self._declared[name] = spec
        return name

    def dynamic_interval(self, name: str) -> Callable[[IntervalFunction], IntervalFunction]:
        """Let a function say how long it is until the next slot of an interval schedule: ``def (name) -> Duration``, or
        None for the schedule's own interval. This app's workers call it when they plan; it must be quick."""

        def register(function: IntervalFunction) -> IntervalFunction:
            if not callable(function):
                raise ConfigError(
                    f"dynamic_interval: expected a function of the schedule's name, got {shown(function)}"
                )
            self._intervals[check_name(name, "name")] = function
            return function

        return register

    def middleware(self, middleware: Middleware) -> Middleware:
        """Run every task inside ``async def (job, next) -> Outcome``; the first one added is outermost. Each job of a
        batch passes through it separately."""
        if not callable(middleware):
            raise ConfigError(f"middleware: expected async def (job, next), got {shown(middleware)}")
        self._middleware.append(middleware)
        return middleware

    def observe(self, observer: W) -> W:
        """Call ``observer(event)`` for everything that happens in this process."""
        self.client.observers.add(observer)
        return observer

    # -- using

    async def __aenter__(self) -> App:
        guest = self._working is not None
        if await self.client.enter():
            self._guest = guest
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.client.exit() and not (self._guest and self._working is not None):
            await self.close()

    async def close(self) -> None:
        """Stop the worker on this loop, wait for it, and disconnect. ``async with app`` ends with this, unless the
        worker ran before the block. The app opens itself again when it is used."""
        if self.client.home not in (None, asyncio.get_running_loop()):
            return
        self.stop()
        try:
            if self._working is not None:
                await self._working.wait()
        finally:
            await self.client.close()

    @needs_loop("SyncApp(app).enqueue_many(jobs)")
    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Handle[Any]]:
        """Store many jobs in as few trips as possible; handles come in the order of the jobs."""
        given = check_jobs(jobs)
        plain: JsonSerde[Any] = JsonSerde()
        serdes = {name: task.results for name, task in self.tasks.items() if isinstance(task, Task)}
        answers = await self.client.insert(given)
        return [Handle(self.client, i, serdes.get(job.task, plain)) for job, i in zip(given, answers, strict=True)]

    @needs_loop()
    async def enqueue_named(self, task: str, args: dict[str, Any], **options: Unpack[JobOptions]) -> Handle[Any]:
        """Enqueue a task of this app by its name, with arguments by name."""
        found = self.tasks.get(task) if isinstance(task, str) else None
        if found is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(f"no task {shown(task)} in this app; it has: {known}")
        if not isinstance(args, dict) or not all(isinstance(name, str) for name in args):
            raise InvalidJob(f"task {task}: args: expected a dict of arguments by name, got {shown(args)}")
        if isinstance(found, BatchTask):
            return await found.enqueue(args, **options)
        return await found.options(**options).enqueue(**args)

    @overload
    def bind(self, connection: SyncConnection) -> Bound: ...
    @overload
    def bind(self, connection: AsyncConnection) -> AsyncBound: ...
    def bind(self, connection: SyncConnection | AsyncConnection) -> Bound | AsyncBound:
        """Enqueue and complete jobs in your own transactions on PostgreSQL: with a connection of psycopg, asyncpg or
        Django, or a Connection or Session of SQLAlchemy, async or not. The app need not be open."""
        return Binding(self.client, self.tasks).join(connection)

    # -- working

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks, and those that they overflow to."""
        pairs = ((task.queue, task.overflow) for task in self.tasks.values())
        return sorted({queue for pair in pairs for queue in pair if queue is not None})

    @property
    def working(self) -> bool:
        """Whether a worker runs in this process, or is about to."""
        return self._working is not None

    @property
    def worker(self) -> Worker | None:
        """The worker that runs in this process now."""
        return self._worker

    def handlers(self, threads: ThreadExecutor, processes: ProcessExecutor) -> dict[str, Handler]:
        """All tasks, ready to run."""
        middleware = tuple(self._middleware)
        return {
            name: task.handler(middleware)
            if isinstance(task, BatchTask)
            else task.handler(middleware, threads, processes)
            for name, task in self.tasks.items()
        }

    def work(self, queues: Sequence[str] | None = None, *, burst: bool = False) -> Coroutine[Any, Any, None]:
        """Run a worker until ``stop``; with ``burst``, until nothing more is due. A ``stop`` counts from this call on,
        even before the worker is awaited."""
        return self._work(queues, burst, self._stops)

    async def _work(self, queues: Sequence[str] | None, burst: bool, stops: int) -> None:
        if self._working is not None:
            raise ConfigError("a worker of this app already runs in this process")
        if isinstance(queues, str):
            raise ConfigError(f"queues: expected a list of names, got the text {shown(queues)}")
        if self._stops != stops:
            return
        self._working = ended = asyncio.Event()
        threads, processes = ThreadExecutor(), ProcessExecutor()
        try:
            await self.client.open()
            for spec in self._declared.values():
                await self.schedules.put(spec)
            handlers = self.handlers(threads, processes)
            self._worker = self.client.worker(
                handlers, queues or self.queues, intervals=self._intervals, strays=threads.strays
            )
            if self._stops != stops:
                self._worker.stop()
            await self._worker.run(burst=burst)
        finally:
            self._worker = None
            try:
                await threads.close()
                await processes.close()
            finally:
                self._working = None
                ended.set()

    def drain(self, queues: Sequence[str] | None = None) -> Coroutine[Any, Any, None]:
        """Run everything that is due, then return."""
        return self.work(queues, burst=True)

    def stop(self) -> None:
        """Ask the running worker for a graceful stop."""
        self._stops += 1
        if self._worker is not None:
            self._worker.stop()

    def run(self, queues: Sequence[str] | None = None, *, burst: bool = False) -> None:
        """Run a worker until SIGINT or SIGTERM: the first stops it gracefully, a second one at once."""
        no_loop("app.run()", "await app.work()")
        asyncio.run(self._run(queues, burst))

    async def _run(self, queues: Sequence[str] | None, burst: bool) -> None:
        async with self:
            with Stopper(self.stop):
                await self.work(queues, burst=burst)


class TaskDecorator(Protocol):
    """What ``@app.task(…)`` returns: typed for async and plain functions, with and without a job parameter."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


def _name_of(function: Callable[..., Any], given: str | None) -> str:
    if given is not None:
        return given
    module = getattr(function, "__module__", "")
    qualname = getattr(function, "__qualname__", "")
    if not qualname or "<lambda>" in qualname:
        raise ConfigError("a task needs a name: give name=, or use a function that has one")
    module = main_module() if module == "__main__" else module
    return f"{module}.{qualname}".replace("<locals>.", "") if module else qualname.rsplit("<locals>.", 1)[-1]


def main_module() -> str:
    """The name under which others import the running script; empty in an interactive session."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = str(getattr(main, "__file__", ""))
    return "" if file.startswith("<") else Path(file).stem
