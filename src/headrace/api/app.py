"""The app: tasks on one store, and the worker that runs them."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, Unpack, overload

from headrace.api.batch import BatchTask
from headrace.api.bind import AsyncBound, AsyncConnection, Binding, Bound, SyncConnection
from headrace.api.bundle import Bundle
from headrace.api.client import AnyId, Client
from headrace.api.connection import connect
from headrace.api.crawler import Crawler, ReadPage
from headrace.api.foreign import Connected, tell_contradiction
from headrace.api.handle import Handle
from headrace.api.job_calls import JobCalls
from headrace.api.loop_guard import needs_loop, no_loop
from headrace.api.modules import check_pattern, import_all
from headrace.api.options import JobOptions
from headrace.api.registry import Registry
from headrace.api.signals import Stopper
from headrace.api.stream import Part, parts_of
from headrace.api.table import Table, make_limits
from headrace.api.task import Task
from headrace.api.tracker import Tracker, TrackerOptions, Visit
from headrace.core.callables import is_async
from headrace.core.config import Settings, WorkerSettings
from headrace.core.events import Observer
from headrace.core.names import check_name
from headrace.core.settings_options import SettingsOptions
from headrace.core.validation import check_jobs
from headrace.errors import ConfigError, InvalidJob, UnknownTask
from headrace.keeping.bounds import Rule
from headrace.keeping.janitor import Janitor, RuleOptions, make_rules
from headrace.limits.policies import Policies
from headrace.payloads.codec import JsonSerde, Serde
from headrace.payloads.offload import decode_result
from headrace.schedules.planner import IntervalFunction
from headrace.schedules.schedules import Schedules
from headrace.schedules.spec import Cron, CronOptions, Every, EveryOptions, check_job, define, template_of
from headrace.seam.records import Record
from headrace.text import shown
from headrace.tracking.sink import RowSink
from headrace.types import Duration, NewJob
from headrace.vault.vault import Vault
from headrace.worker.executors import ProcessExecutor, ThreadExecutor
from headrace.worker.handler import Handler
from headrace.worker.middleware import Middleware, PlainMiddleware
from headrace.worker.pull import Pull, PullOptions
from headrace.worker.startups import Per, Startups
from headrace.worker.worker import Worker

S = TypeVar("S", bound=Callable[[], Any])
T = TypeVar("T")
W = TypeVar("W", bound=Observer)


class App(JobCalls, Registry):
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

    _kind = "app"

    def __init__(
        self,
        url: str | Settings | Client | Connected | None = None,
        *,
        middleware: Sequence[Middleware] = (),
        include: Sequence[str | Bundle] = (),
        **overrides: Unpack[SettingsOptions],
    ) -> None:
        super().__init__()
        if isinstance(url, Client) and overrides:
            raise ConfigError(f"expected a client or settings, got both: {sorted(overrides)[0]!r} beside a Client")
        self._client = url if isinstance(url, Client) else connect(url, **overrides)
        tell_contradiction(url, "App()")
        self._modules: list[str] = []
        self._loaded: list[str] = []
        self._declared: dict[str, Every | Cron] = {}
        self._intervals: dict[str, IntervalFunction] = {}
        self._trackers: dict[str, Tracker] = {}
        self._tables: dict[tuple[str, ...], Table[Any]] = {}
        self._protected: set[tuple[str, ...]] = set()
        self.schedules = Schedules(self, self._intervals)
        self.policies = Policies(self, self.tasks)
        self.janitor = Janitor(self, lambda: [one for one in self._tables.values() if one.is_swept])
        self._kept: list[Rule] = []
        self.vault = Vault(self)
        self._middleware = list(middleware)
        self._plain: list[PlainMiddleware] = []
        self._startups = Startups()
        self.executors: Callable[[WorkerSettings, bool], tuple[ThreadExecutor, ProcessExecutor]] = _executors
        """Makes what runs the plain tasks of a worker; tests have one that runs them in the test's own thread."""
        self._worker: Worker | None = None
        self._working: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        """The loop that a worker runs on, and what is set when it has ended."""
        self._guest = False
        self._stops = 0
        if isinstance(include, str):
            raise ConfigError(f"include: expected a list of modules and bundles, got the text {shown(include)}")
        self.include(*include)

    @property
    def client(self) -> Client:
        """The way to the store, on the loop that runs here."""
        return self._client.here

    @client.setter
    def client(self, client: Client) -> None:
        self._client = client

    def _access(self) -> Client:
        return self.client

    # -- registering

    def include(self, *what: Bundle | str) -> None:
        """Add the tasks of a bundle, or name modules that have tasks: ``"shop.emails"``, ``"shop.*.tasks"``,
        ``"shop.**"``. Modules are imported by ``load``."""
        for one in what:
            if isinstance(one, Bundle):
                one.join(self)
            else:
                self._modules.append(check_pattern(one))

    def load(self) -> None:
        """Import the modules that ``include`` names, once. Workers and the command line do this by themselves; they can
        not be imported where the app is made, because they need the app."""
        modules, self._modules = self._modules, []
        try:
            self._loaded += import_all(modules)
        except BaseException:
            self._modules = modules + self._modules
            raise

    def _add(self, task: Task[Any, Any] | BatchTask[Any]) -> None:
        task.check(self.client)
        super()._add(task)

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
        define(spec, template_of(self.client.packer.pack_template(made)), 0)
        name = check_name(made.task if spec.name is None else spec.name, "name")
        if name in self._declared:
            raise ConfigError(f"a schedule named {shown(name)} is declared already; give one of them another name=")
        self._declared[name] = spec
        return name

    def keep(self, age: Duration, **options: Unpack[RuleOptions]) -> None:
        """Declare how long ended jobs are kept, as ``app.janitor.keep``. Every worker that starts puts the rule in the
        store."""
        self._kept += make_rules(age, **options)

    def tracker(
        self,
        name: str,
        handler: Visit,
        tiers: Mapping[str, Duration],
        *,
        results: RowSink | None = None,
        **options: Unpack[TrackerOptions],
    ) -> Tracker:
        """Visit subjects again and again: those of each tier once per interval, some dozen in one call of the handler.
        ``results`` takes the rows that the handler returns. Options are those of the jobs that do this."""
        if name in self._trackers:
            raise ConfigError(f"a tracker named {shown(name)} is there already; give one of them another name")
        tracker = Tracker(self, name, handler, tiers, results, options)
        self._add(tracker.visiting)
        self._add(tracker.adding)
        self._trackers[name] = tracker
        return tracker

    def crawler(
        self,
        name: str,
        handler: ReadPage,
        *,
        every: Duration,
        pause: Duration = 0,
        **options: Unpack[TrackerOptions],
    ) -> Crawler:
        """Read terms page by page, each again ``every`` so often, with ``pause`` between two pages. The handler gets a
        cursor and returns the token of the next page, or None after the last one. Cursors are durable."""
        crawler = Crawler(self, name, handler, every, pause, options)
        self._add(crawler.reading)
        return crawler

    def table(
        self,
        name: str | tuple[str, str],
        row: type[T] | None = None,
        *,
        keep: Duration | None,
        age: str,
        key: Sequence[str] | None = None,
        processed: str | None = None,
        keep_unprocessed: Duration | None = None,
        archive: RowSink | None = None,
        sweep: Duration | str = "1h",
        queue: str = "default",
        share: float = 0.5,
        floor: int = 1_000,
        gap: Duration = "3d",
        budget: int | None = None,
    ) -> Table[T]:
        """A table of your own in the store's database, on SQLite or PostgreSQL, whose rows go ``keep`` after the time
        in the column ``age``; or one to be made from a struct. None: they never go, whatever else is said.

        Workers delete old rows every ``sweep``, which may be a cron expression. ``processed``: a column that must be
        true or set before, but for rows older than ``keep_unprocessed``. ``archive`` takes rows before they are
        deleted. A sweep that would delete more than ``share`` of the table, or whose newest row is older than ``gap``,
        stops, unless it is about ``floor`` rows or fewer. ``budget``: bytes that the table may take up with its
        indexes. At 80 % there is an alert; from 85 % on, rows are refused with ``StoreFull``."""
        limits = make_limits(keep, keep_unprocessed, share, floor, gap, f"table {shown(name)}")
        table = Table(
            self, name, row, age=age, key=key, processed=processed, archive=archive, limits=limits, queue=queue,
            budget=budget,
        )  # fmt: skip
        if table.table in self._tables:
            raise ConfigError(f"table {shown(table.name)} is declared already")
        if limits is not None and table.table in self._protected:
            raise ConfigError(f"table {shown(table.name)} is protected: no row of it may be deleted")
        self._tables[table.table] = table
        if limits is None:
            self._protected.add(table.table)
            return table
        self._add(table.sweeping)
        if isinstance(sweep, str) and " " in sweep.strip():
            self.cron(sweep, table.sweeping, name=f"table:{table.name}", overlap="skip")
        else:
            self.every(sweep, table.sweeping, name=f"table:{table.name}", overlap="skip")
        return table

    @property
    def tables(self) -> dict[str, Table[Any]]:
        """The hot tables that are declared, by name."""
        return {table.name: table for table in self._tables.values()}

    @property
    def trackers(self) -> dict[str, Tracker]:
        """The trackers that are declared, by name."""
        return dict(self._trackers)

    def protect(self, *names: str | tuple[str, str]) -> None:
        """Let no rule of this app delete rows of these tables, nor, once a worker of this app has started, a rule of
        any other process. ``app.janitor.protect`` does that at once."""
        for name in names:
            table = (name,) if isinstance(name, str) else tuple(name)
            known = self._tables.get(table)
            if known is not None and table not in self._protected:
                raise ConfigError(
                    f"table {shown(known.name)} has rows that are to be deleted; declare it with keep=None"
                )
            self._protected.add(table)

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

    def plain_middleware(self, middleware: PlainMiddleware) -> PlainMiddleware:
        """Run every plain task inside ``def (job, next) -> Outcome``, in the thread or the child process of the task;
        the first one added is outermost. ``job`` is a ``CurrentJob``."""
        if not callable(middleware) or is_async(middleware):
            raise ConfigError(f"plain_middleware: expected a plain def (job, next), got {shown(middleware)}")
        self._plain.append(middleware)
        return middleware

    @property
    def plain_chain(self) -> Sequence[PlainMiddleware]:
        """The middleware of plain tasks."""
        return tuple(self._plain)

    @overload
    def startup(self, function: S, /) -> S: ...
    @overload
    def startup(self, function: None = None, /, *, per: Per = "worker") -> Callable[[S], S]: ...
    def startup(self, function: S | None = None, /, *, per: Per = "worker") -> S | Callable[[S], S]:
        """Run a function when a worker starts, before it claims a job; ``per="child"``: in each process that runs
        ``executor="process"`` tasks. What it returns, or yields, is handed to tasks by its annotated type. If it
        yields, the rest runs at the end. It may be async, except in a child."""

        def register(function: S) -> S:
            self._startups.add(function, per)
            return function

        return register if function is None else register(function)

    @property
    def startups(self) -> Startups:
        """The start-up functions, and what they have made."""
        return self._startups

    def using(self, instead: Mapping[Any, Any]) -> AbstractContextManager[None]:
        """In tests: hand these to tasks, by type, and do not make what they stand in for."""
        return self._startups.using(instead)

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
        worker ran before the block. The app opens itself again when it is used. Raises ``ConfigError`` in a handler of
        this app: the worker would wait for the handler, and the handler for the worker."""
        if self.client.home not in (None, asyncio.get_running_loop()):
            return
        if self._worker is not None and self._worker.runs(asyncio.current_task()):
            raise ConfigError("a handler may not close the app that runs it; app.stop() asks its worker to stop")
        try:
            if self._working is None:
                self.stop()
            elif self._working[0] is asyncio.get_running_loop():
                self.stop()
                await self._working[1].wait()
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

    def stream(self, job_id: AnyId) -> AsyncIterator[Part]:
        """What a job sends while it runs, by its id, as ``Handle.stream`` gives it."""
        return parts_of(self.client, job_id)

    @needs_loop("SyncApp(app).wait(id)")
    async def wait(self, job_id: AnyId, timeout: Duration | None = "30s") -> Any:
        """Wait for the result of a job, by its id; with 0, look once. If it is a job of this app, the result has the
        type that the task returns, and is plain data otherwise. Raises ``WaitTimeout``, ``JobNotFound``, or the
        ``JobError`` that says why there is no result."""
        record = await self.client.wait(job_id, timeout)
        return await decode_result(self.client.packer.envelope, record.result, self.serde_of(record), record.id)

    def serde_of(self, record: Record) -> Serde[Any]:
        """How the result of a job was encoded."""
        task = self.tasks.get(record.task)
        return task.results if isinstance(task, Task) else JsonSerde[Any]()

    @needs_loop()
    async def enqueue_named(self, task: str, args: dict[str, Any], **options: Unpack[JobOptions]) -> Handle[Any]:
        """Enqueue a task of this app by its name, with arguments by name."""
        self.load()
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

    def pull(self, queues: str | Iterable[str], **options: Unpack[PullOptions]) -> Pull:
        """Leased jobs in a loop of your own, as ``Client.pull`` gives them."""
        return self.client.pull(queues, **options)

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
        self.load()
        if not queues and not self.tasks:
            raise ConfigError(self._no_tasks())
        ended = asyncio.Event()
        self._working = asyncio.get_running_loop(), ended
        threads, processes = self.executors(self.client.settings.worker, self._startups.for_children)
        try:
            await self.client.open()
            if self._declared:
                await self.schedules.put_many(self._declared.values())
            if self._kept:
                await self.janitor.put(self._kept)
            if self._protected:
                await self.janitor.protect(*self._protected)
            async with self._startups.started():
                await self._run_worker(queues, burst, stops, threads, processes)
        finally:
            self._working = None
            ended.set()

    async def _run_worker(
        self,
        queues: Sequence[str] | None,
        burst: bool,
        stops: int,
        threads: ThreadExecutor,
        processes: ProcessExecutor,
    ) -> None:
        try:
            handlers = self.handlers(threads, processes)
            self._worker = self.client.worker(
                handlers,
                queues or self.queues,
                intervals=self._intervals,
                strays=threads.strays,
                trackers={name: tracker.row for name, tracker in self._trackers.items()},
            )
            if self._stops != stops:
                self._worker.stop()
            await self._worker.run(burst=burst)
        finally:
            self._worker = None
            await threads.close()
            await processes.close()

    def _no_tasks(self) -> str:
        looked = f"{', '.join(self._loaded)}, which it includes, have none" if self._loaded else "it includes no others"
        return (
            "this app has no tasks, so its worker has no queue to claim from: no module that was imported so far has "
            f'registered one, and {looked}. Name the modules with tasks: App(include=["shop.emails"])'
        )

    def drain(self, queues: Sequence[str] | None = None) -> Coroutine[Any, Any, None]:
        """Run everything that is due, then return."""
        return self.work(queues, burst=True)

    def stop(self) -> None:
        """Ask the running worker for a graceful stop. Callable from any thread."""
        self._stops += 1
        worker, working = self._worker, self._working
        if worker is None or working is None:
            return
        if _get_running_loop() is working[0]:
            worker.stop()
        else:
            working[0].call_soon_threadsafe(worker.stop)

    def run(self, queues: Sequence[str] | None = None, *, burst: bool = False) -> None:
        """Run a worker until SIGINT or SIGTERM: the first stops it gracefully, a second one at once."""
        no_loop("app.run()", "await app.work()")
        asyncio.run(self._run(queues, burst))

    async def _run(self, queues: Sequence[str] | None, burst: bool) -> None:
        async with self:
            with Stopper(self.stop):
                await self.work(queues, burst=burst)


def _executors(settings: WorkerSettings, polite: bool) -> tuple[ThreadExecutor, ProcessExecutor]:
    return ThreadExecutor(), ProcessExecutor(settings, polite=polite)
