"""A task: a function of yours, and how its jobs run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from headrace.api.arguments import Arguments
from headrace.api.blocking import BLOCKING, Blocking
from headrace.api.handle import Handle
from headrace.api.loop_guard import needs_loop
from headrace.api.options import TaskOptions
from headrace.api.registered import Registered, TaskOwner
from headrace.api.sync_handle import SyncHandle
from headrace.core.callables import check_handler, is_async
from headrace.core.durations import micros
from headrace.errors import ConfigError
from headrace.payloads.codec import JSON, JsonSerde
from headrace.payloads.offload import LARGE, decode_result, wrap
from headrace.seam.records import Leased
from headrace.types import Done, NewJob, Outcome
from headrace.worker.executors import ProcessExecutor, ThreadExecutor, function_path
from headrace.worker.handler import Handler, Load, is_outcome
from headrace.worker.job import Job
from headrace.worker.middleware import Middleware, compose, compose_plain

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

    def __init__(self, owner: TaskOwner, function: Callable[..., Any], name: str, options: TaskOptions) -> None:
        if not callable(function):
            raise ConfigError(f"task: expected a function, got {type(function).__name__}")
        check_handler(function, f"task {name}")
        super().__init__(owner, function, name, options, f"task {name}")
        self._executor = executor = options.get("executor")
        self._arguments = Arguments(function, name)
        self._given = self._arguments.given
        self._label = f"task {name}: arguments"
        self.results = JsonSerde(self._arguments.result_type)
        update_wrapper(self, function, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
        if executor == "process":
            self._path()
        if executor is not None and is_async(function):
            raise ConfigError(
                f"task {name}: async functions run on the event loop; executor={executor!r} is for plain ones"
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function itself, without any queue. If it takes a job first, call ``.function`` with one."""
        if self._arguments.takes_job:
            raise TypeError(f"task {self.name} takes a job first; call its .function with a job that you made")
        missing = {name: kind for name, kind in self._given.items() if name not in kwargs}
        return self.function(*args, **kwargs, **{name: self._owner.use(kind) for name, kind in missing.items()})

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The job that ``enqueue`` would store; for ``enqueue_many`` and ``spawn``."""
        packer = self._owner.client.packer
        return self._made(packer.envelope.wrap(self._arguments.encode(args, kwargs), JSON, self._label), packer)

    @needs_loop("its enqueue_sync(…)")
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a job; returns when it is durable."""
        client, body = self._owner.client, self._arguments.encode(args, kwargs)
        packer, seal = client.packer, client.packer.envelope.wrap
        large = len(body) > LARGE
        cell = await asyncio.to_thread(seal, body, JSON, self._label) if large else seal(body, JSON, self._label)
        job = self._made(cell, packer)
        return Handle(client, await client.enqueue(job), self.results)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """``enqueue`` for code without an event loop: views, plain tasks, threads, scripts. Blocks until the job is
        durable. In async code it works too, but holds up the event loop for that long."""
        return self._enqueue_blocking(BLOCKING, *args, **kwargs)

    def _enqueue_blocking(self, blocking: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        job = self.job(*args, **kwargs)
        inserted = blocking._insert(self._owner, job, f"{self._short}.enqueue(…)")
        return SyncHandle(blocking, Handle(self._owner.client, inserted, self.results))

    def call_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """``call`` for code without an event loop. Blocks until there is a result."""
        return self._call_blocking(BLOCKING, *args, **kwargs)

    def _call_blocking(self, blocking: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return blocking._do(self._owner.client, lambda: self.call(*args, **kwargs), f"{self._short}.call(…)")

    @needs_loop("its call_sync(…)")
    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Have a worker run it, and wait for the result: ``options(wait=…)`` says how long, 30 s by default."""
        client, body = self._owner.client, self._arguments.encode(args, kwargs)
        if self._wait is not None:
            micros(self._wait, "wait")
        cell = await wrap(client.packer.envelope, body, JSON, self._label)
        job_id, answer = await client.call(self._made(cell, client.packer), self._wait)
        return await decode_result(client.packer.envelope, answer, self.results, job_id)

    # -- for the worker

    def handler(self, middleware: Sequence[Middleware], threads: ThreadExecutor, processes: ProcessExecutor) -> Handler:
        """The task, ready to run in one worker, which has started."""
        executor = self._executor or self._owner.client.settings.worker.executor
        invoke = self._invoke(executor, threads, processes)
        threaded = executor == "thread" and not is_async(self.function)
        common = self._handling() | {"threaded": threaded}
        split, takes_job = self._arguments.split, self._arguments.takes_job
        if takes_job or middleware:
            innermost = _outcome(lambda job: invoke(job if takes_job else None, split(job.payload)))
            return Handler(**common, load=self._loader(self._arguments.named), call=compose(middleware, innermost))
        return Handler(**common, load=self._loader(self._arguments.decode), call=partial(invoke, None), quick=True)

    def _loader(self, decode: Callable[[bytes], Any]) -> Load:
        """Gives the arguments of a job. One that was enqueued without any calls the function without any."""
        unwrap = self._owner.client.packer.envelope.unwrap

        def load(leased: Leased) -> Any:
            cell = leased.cells.get("parameters")
            return decode(b"{}" if cell is None else unwrap(cell, "parameters", leased.id, leased.tenant)[1])

        return load

    def _invoke(
        self, executor: str, threads: ThreadExecutor, processes: ProcessExecutor
    ) -> Callable[[Job[Any] | None, Any], Awaitable[Any]]:
        chain = self._owner.plain_chain
        function = self._with_given("child" if executor == "process" and not is_async(self.function) else "worker")
        if is_async(self.function):

            def run(job: Job[Any] | None, call: Any) -> Awaitable[Any]:
                args, kwargs = call
                return function(*args, **kwargs) if job is None else function(job, *args, **kwargs)  # type: ignore[no-any-return]

        elif executor == "process":
            path = self._path()

            def run(job: Job[Any] | None, call: Any) -> Awaitable[Any]:
                return processes.run(path, *call)

        else:

            def run(job: Job[Any] | None, call: Any) -> Awaitable[Any]:
                args, kwargs = call
                plain = partial(function, *(args if job is None else (job, *args)), **kwargs)
                return _awaited(threads.run(compose_plain(chain, plain) if chain else plain, self.name))

        return run

    def _path(self) -> str:
        """Where other processes find the function."""
        path = function_path(self.function)
        if self._arguments.takes_job:
            raise ConfigError(
                f"task {self.name}: a job cannot be handed to another process; leave out the job parameter"
            )
        return path

    def in_child(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function in a child process, which this is."""
        startups = self._owner.startups
        startups.start_child()
        given = {name: startups.use(kind) for name, kind in self._given.items()}
        return compose_plain(self._owner.plain_chain, partial(self.function, *args, **kwargs, **given))()


async def _awaited(call: Awaitable[Any]) -> Any:
    """The value of a plain function; if it is a coroutine, as from a plain wrapper of an async one, its value."""
    value = await call
    return await value if inspect.isawaitable(value) else value


def _outcome(invoke: Callable[[Job[Any]], Awaitable[Any]]) -> Callable[[Job[Any]], Awaitable[Outcome]]:
    async def innermost(job: Job[Any]) -> Outcome:
        value = await invoke(job)
        return value if is_outcome(value) else Done(value)

    return innermost
