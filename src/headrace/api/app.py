"""The app: tasks on one store, and the worker that runs them."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar, Unpack, overload

from headrace.api.batch import BatchTask
from headrace.api.bind import AsyncBound, AsyncConnection, Binding, Bound, SyncConnection
from headrace.api.bundle import Bundle
from headrace.api.client import AnyId, Client
from headrace.api.connection import connect
from headrace.api.declarations import Declarations
from headrace.api.foreign import Connected, tell_contradiction
from headrace.api.handle import Handle
from headrace.api.job_calls import JobCalls
from headrace.api.loop_guard import needs_loop, no_loop
from headrace.api.options import JobOptions
from headrace.api.signals import Stopper
from headrace.api.stream import Part, parts_of
from headrace.api.task import Task
from headrace.core.config import Settings, WorkerSettings
from headrace.core.settings_options import SettingsOptions
from headrace.core.validation import check_jobs
from headrace.errors import ConfigError, InvalidJob, UnknownTask
from headrace.payloads.codec import JsonSerde, Serde
from headrace.payloads.offload import decode_result
from headrace.seam.records import Inserted, Record
from headrace.text import shown
from headrace.types import Duration, NewJob
from headrace.worker.executors import ProcessExecutor, ThreadExecutor
from headrace.worker.handler import Handler
from headrace.worker.middleware import Middleware
from headrace.worker.pull import Pull, PullOptions
from headrace.worker.worker import Worker

S = TypeVar("S", bound=Callable[[], Any])


class App(JobCalls, Declarations):
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
        if isinstance(url, Client) and overrides:
            raise ConfigError(f"expected a client or settings, got both: {sorted(overrides)[0]!r} beside a Client")
        super().__init__(url if isinstance(url, Client) else connect(url, **overrides), middleware)
        tell_contradiction(url, "App()")
        self.executors: Callable[[WorkerSettings, bool], tuple[ThreadExecutor, ProcessExecutor]] = _executors
        """Makes what runs the plain tasks of a worker; tests have one that runs them in the test's own thread."""
        self.tested_by: str | None = None
        """What to test it with, if handlers belong into the thread of the test."""
        self._worker: Worker | None = None
        self._working: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        """The loop that a worker runs on, and what is set when it has ended."""
        self._guest = False
        self._stops = 0
        if isinstance(include, str):
            raise ConfigError(f"include: expected a list of modules and bundles, got the text {shown(include)}")
        self.include(*include)

    def _access(self) -> Client:
        return self.client

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
        """Store many jobs in as few trips as possible; handles come in the order of the jobs. However many there are,
        they are stored in batches of a bounded size."""
        given = check_jobs(jobs)
        return self.handles(given, await self.client.insert(given))

    def handles(self, jobs: Iterable[NewJob], answers: Iterable[Inserted]) -> list[Handle[Any]]:
        """The handles of jobs that were stored."""
        plain: JsonSerde[Any] = JsonSerde()
        serdes = {name: task.results for name, task in self.tasks.items()}
        client = self.client
        return [Handle(client, i, serdes.get(job.task, plain)) for job, i in zip(jobs, answers, strict=True)]

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
        return JsonSerde[Any]() if task is None else task.results

    @needs_loop("SyncApp(app).enqueue_named(…)")
    async def enqueue_named(self, task: str, args: dict[str, Any], **options: Unpack[JobOptions]) -> Handle[Any]:
        """Enqueue a task of this app by its name, with arguments by name."""
        found = self.named(task, args)
        if isinstance(found, BatchTask):
            return await found.enqueue(args, **options)
        return await found.options(**options).enqueue(**args)

    def named(self, task: str, args: dict[str, Any]) -> Task[..., Any] | BatchTask[Any]:
        """The task of this app that has the name. Raises ``UnknownTask``, and ``InvalidJob`` for arguments that are not
        by name."""
        self.load()
        found = self.tasks.get(task) if isinstance(task, str) else None
        if found is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(f"no task {shown(task)} in this app; it has: {known}")
        if not isinstance(args, dict) or not all(isinstance(name, str) for name in args):
            raise InvalidJob(f"task {task}: args: expected a dict of arguments by name, got {shown(args)}")
        return found

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
