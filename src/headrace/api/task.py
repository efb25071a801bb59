"""A task: a function of yours, and how its jobs run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from headrace.api.arguments import Arguments
from headrace.api.client import Client
from headrace.api.handle import Handle
from headrace.api.loop_guard import needs_loop
from headrace.api.options import TaskOptions
from headrace.api.registered import Registered
from headrace.core.callables import check_handler, is_async
from headrace.core.durations import micros
from headrace.core.store_access import Owner
from headrace.errors import ConfigError
from headrace.payloads.codec import JSON, JsonSerde
from headrace.payloads.offload import LARGE, decode
from headrace.seam.records import Leased
from headrace.types import OUTCOMES, Done, NewJob, Outcome
from headrace.worker.executors import ProcessExecutor, ThreadExecutor, function_path
from headrace.worker.handler import Handler
from headrace.worker.job import Job
from headrace.worker.middleware import Middleware, compose

P = ParamSpec("P")
R = TypeVar("R")


class Task(Registered, Generic[P, R]):
    """A registered function. Calling it runs it here and now; ``enqueue`` has a worker run it.

    >>> from headrace import App
    >>> app = App("memory://")
    >>> @app.task(queue="mail")
    ... def welcome(user_id: int) -> str:
    ...     return f"hello {user_id}"
    >>> welcome(42)
    'hello 42'
    >>> later = welcome.options(delay="10m")  # then: await later.enqueue(42)
    >>> later.job(42).delay
    '10m'
    """

    def __init__(self, owner: Owner[Client], function: Callable[..., Any], name: str, options: TaskOptions) -> None:
        if not callable(function):
            raise ConfigError(f"task: expected a function, got {type(function).__name__}")
        check_handler(function, f"task {name}")
        super().__init__(owner, function, name, options, f"task {name}")
        self._executor = executor = options.get("executor")
        self._arguments = Arguments(function, name)
        self.results: JsonSerde[Any] = JsonSerde(self._arguments.result_type)
        """How results of this task are stored."""
        update_wrapper(self, function, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
        if executor == "process":
            function_path(function)
            if self._arguments.takes_job:
                raise ConfigError(
                    f"task {name}: a job cannot be handed to another process; leave out the job parameter"
                )
        if executor is not None and is_async(function):
            raise ConfigError(
                f"task {name}: async functions run on the event loop; executor={executor!r} is for plain ones"
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function itself, without any queue. If it takes a job first, call ``.function`` with one."""
        if self._arguments.takes_job:
            raise TypeError(f"task {self.name} takes a job first; call its .function with a job that you made")
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The job that ``enqueue`` would store; for ``enqueue_many`` and ``spawn``."""
        return self._made(self._sealed(self._arguments.encode(args, kwargs)))

    def _sealed(self, body: bytes) -> bytes:
        return self._owner.client.packer.envelope.seal(body, JSON, f"task {self.name}: arguments")

    @needs_loop("SyncApp(app).enqueue(task, …)")
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a job; returns when it is durable."""
        client, body = self._owner.client, self._arguments.encode(args, kwargs)
        cell = self._sealed(body) if len(body) <= LARGE else await asyncio.to_thread(self._sealed, body)
        return Handle(client, await client.enqueue(self._made(cell)), self.results)

    @needs_loop("SyncApp(app).call(task, …)")
    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Have a worker run it, and wait for the result: ``options(wait=…)`` says how long, 30 s by default."""
        client, body = self._owner.client, self._arguments.encode(args, kwargs)
        if self._wait is not None:
            micros(self._wait, "wait")
        cell = self._sealed(body) if len(body) <= LARGE else await asyncio.to_thread(self._sealed, body)
        answer = await client.call(self._made(cell), self._wait)
        return await decode(client.packer.envelope, answer, self.results, "result")

    # -- for the worker

    def handler(self, middleware: Sequence[Middleware], threads: ThreadExecutor, processes: ProcessExecutor) -> Handler:
        """The task, ready to run in one worker."""
        executor = self._executor or self._owner.client.settings.worker.executor
        invoke = self._invoke(executor, threads, processes)
        threaded = executor == "thread" and not is_async(self.function)
        common = self._handling() | {"result_serde": self.results, "threaded": threaded}
        split, takes_job = self._arguments.split, self._arguments.takes_job
        if takes_job or middleware:
            innermost = _outcome(lambda job: invoke(job if takes_job else None, split(job.payload)))
            return Handler(**common, load=self._load_named, call=compose(middleware, innermost))
        return Handler(**common, load=self._load, quick=partial(invoke, None))

    def _load(self, leased: Leased) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self._arguments.decode(self._body(leased))

    def _load_named(self, leased: Leased) -> dict[str, Any]:
        return self._arguments.named(self._body(leased))

    def _body(self, leased: Leased) -> bytes:
        """A job that was enqueued without arguments calls the function without any."""
        cell = leased.cells.get("parameters")
        return b"{}" if cell is None else self._owner.client.packer.envelope.open(cell, "parameters")[1]

    def _invoke(
        self, executor: str, threads: ThreadExecutor, processes: ProcessExecutor
    ) -> Callable[[Job[Any] | None, Any], Awaitable[Any]]:
        function = self.function
        if is_async(function):

            def run(job: Job[Any] | None, call: Any) -> Awaitable[Any]:
                args, kwargs = call
                return function(*args, **kwargs) if job is None else function(job, *args, **kwargs)  # type: ignore[no-any-return]

        elif executor == "process":
            if self._arguments.takes_job:
                raise ConfigError(
                    f"task {self.name}: a job cannot be handed to another process; leave out the job parameter"
                )
            path = function_path(function)

            def run(job: Job[Any] | None, call: Any) -> Awaitable[Any]:
                return processes.run(path, *call)

        else:

            def run(job: Job[Any] | None, call: Any) -> Awaitable[Any]:
                args, kwargs = call
                return _awaited(
                    threads.run(partial(function, *(args if job is None else (job, *args)), **kwargs), self.name)
                )

        return run


async def _awaited(call: Awaitable[Any]) -> Any:
    """The value of a plain function; if it is a coroutine, as from a plain wrapper of an async one, its value."""
    value = await call
    return await value if inspect.isawaitable(value) else value


def _outcome(invoke: Callable[[Job[Any]], Awaitable[Any]]) -> Callable[[Job[Any]], Awaitable[Outcome]]:
    async def innermost(job: Job[Any]) -> Outcome:
        value = await invoke(job)
        return value if isinstance(value, OUTCOMES) else Done(value)

    return innermost
