"""What an app declares: its tasks' modules, schedules, trackers, tables, middleware and start-up functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, Unpack, overload

from headrace.api.batch import BatchTask
from headrace.api.bundle import Bundle
from headrace.api.client import Client
from headrace.api.crawler import Crawler, ReadPage
from headrace.api.modules import check_pattern, import_all
from headrace.api.registry import Registry
from headrace.api.table import Table, is_cron, make_limits
from headrace.api.task import Task
from headrace.api.tracker import Tracker, TrackerOptions, Visit
from headrace.core.callables import is_async
from headrace.core.events import Observer
from headrace.core.names import check_name
from headrace.errors import ConfigError
from headrace.keeping.bounds import Rule
from headrace.keeping.janitor import Janitor, RuleOptions, make_rules
from headrace.limits.policies import Policies
from headrace.schedules.planner import IntervalFunction
from headrace.schedules.schedules import Schedules
from headrace.schedules.spec import Cron, CronOptions, Every, EveryOptions, check_job, define, template_of
from headrace.text import shown
from headrace.tracking.sink import RowSink
from headrace.types import Duration, NewJob
from headrace.vault.vault import Vault
from headrace.worker.middleware import Middleware, PlainMiddleware
from headrace.worker.startups import Per, Startups

S = TypeVar("S", bound=Callable[[], Any])
T = TypeVar("T")
W = TypeVar("W", bound=Observer)
H = TypeVar("H", bound=Callable[..., Any])


class Declarations(Registry):
    """Tasks, and everything else that is said before work begins. Workers put into the store what belongs there."""

    def __init__(self, client: Client, middleware: Sequence[Middleware]) -> None:
        super().__init__()
        self._client = client
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

    @property
    def client(self) -> Client:
        """The way to the store, on the loop that runs here."""
        return self._client.here

    @client.setter
    def client(self, client: Client) -> None:
        self._client = client

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
        """Read terms page by page, each of them once per ``every``, with ``pause`` between two pages. The handler gets
        a cursor and returns the token of the next page, or None after the last one. Cursors are durable."""
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
        deleted. A sweep that would delete more than ``share`` of the table, or is later than ``gap``, stops, unless it
        is about ``floor`` rows or fewer. ``budget``: bytes that the table may take up with its indexes. At 80 % there
        is an alert; from 85 % on, rows are refused with ``StoreFull``."""
        limits = make_limits(keep, keep_unprocessed, share, floor, gap, sweep, f"table {shown(name)}")
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
        if is_cron(sweep):
            self.cron(str(sweep), table.sweeping, name=f"table:{table.name}", overlap="skip")
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

    def on_alert(self, hook: H) -> H:
        """Call ``hook(change)``, a function that is async or does not block, when an alert of the store comes on,
        changes its level, or is over: in processes that serve HTTP for this app, on the server's loop."""
        self.client.alert_hooks.append(hook)
        return hook
