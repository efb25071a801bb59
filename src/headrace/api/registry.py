"""Where functions become tasks, and schedules are declared: on an app, or on a bundle that an app includes."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Union, Unpack, overload

from headrace.api.batch import BatchTask
from headrace.api.client import Client
from headrace.api.options import BatchOptions, TaskOptions, known
from headrace.api.task import Task
from headrace.errors import ConfigError
from headrace.schedules.spec import CronOptions, EveryOptions
from headrace.types import Again, Cancelled, Done, Duration, Fail, NewJob, Paused, Retry
from headrace.worker.job import Job
from headrace.worker.middleware import PlainMiddleware
from headrace.worker.startups import Startups

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Ends = Union[Done[R], Retry, Again, Paused, Fail, Cancelled]  # noqa: UP007
"""What a function returns that returns outcomes alone. In either case, callers get ``R``."""
Gives = Union[R, Done[R], Retry, Again, Paused, Fail, Cancelled]  # noqa: UP007
"""What any other function returns."""


class Registry:
    """What ``App`` and ``Bundle`` have in common."""

    _kind: str
    """What messages call it: ``app``, ``bundle``."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task[Any, Any] | BatchTask[Any]] = {}

    @property
    def client(self) -> Client:
        """The way to the store, on the loop that runs here."""
        raise NotImplementedError

    @property
    def startups(self) -> Startups:
        """The start-up functions, and what they have made."""
        raise NotImplementedError

    @property
    def plain_chain(self) -> Sequence[PlainMiddleware]:
        """The middleware of plain handlers."""
        raise NotImplementedError

    def use(self, kind: type[T]) -> T:
        """What an ``@app.startup`` function has made of this type, in a worker or its child. Raises ``ConfigError``
        where there is none."""
        return self.startups.use(kind)

    @overload
    def task(self, function: Callable[Concatenate[Job[Any], P], Awaitable[Ends[R]]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Job[Any], P], Ends[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[Ends[R]]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Ends[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Job[Any], P], Awaitable[Gives[R]]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Job[Any], P], Gives[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[Gives[R]]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Gives[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Register a function as a task. Async functions run on the worker's loop, plain ones in a thread
        (``executor="process"``: in a process). A first parameter annotated ``Job`` gets the job itself."""
        known(options, TaskOptions, f"@{self._kind}.task: ")
        if (executor := options.get("executor")) not in (None, "thread", "process"):
            raise ConfigError(f"executor: expected 'thread' or 'process', got {executor!r}")

        def register(function: Callable[..., Any]) -> Task[Any, Any]:
            task: Task[Any, Any] = Task(self, function, _name_of(function, options.get("name")), self._with(options))
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
        known(options, BatchOptions, f"@{self._kind}.batch: ")

        def register(function: Callable[[list[Job[Any]]], Awaitable[Any]]) -> BatchTask[Any]:
            name = _name_of(function, options.get("name"))
            batch: BatchTask[Any] = BatchTask(self, function, name, self._with(options))
            self._add(batch)
            return batch

        return register if function is None else register(function)

    def every(self, interval: Duration, job: Task[[], Any] | NewJob, **options: Unpack[EveryOptions]) -> str | None:
        """Declare a schedule at equal intervals: of a task, or of a job with arguments from ``task.job(…)``. Every
        worker that starts puts it in the store, where it is kept once. Options as for ``Every``."""
        raise NotImplementedError

    def cron(self, expression: str, job: Task[[], Any] | NewJob, **options: Unpack[CronOptions]) -> str | None:
        """Declare a schedule by the clock, as ``every`` does; options as for ``Cron``, including ``tz``."""
        raise NotImplementedError

    def _with(self, options: Any) -> Any:
        """The options of a task that is registered here."""
        return options

    def _add(self, task: Task[Any, Any] | BatchTask[Any]) -> None:
        self._check_free(task.name)
        self.tasks[task.name] = task

    def _check_free(self, name: str) -> None:
        if name in self.tasks:
            raise ConfigError(f"a task named {name!r} is registered already; give one of them another name=")


class TaskDecorator(Protocol):
    """What ``@app.task(…)`` returns: typed for async and plain functions, with and without a job parameter."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], Awaitable[Ends[R]]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], Ends[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[Ends[R]]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Ends[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], Awaitable[Gives[R]]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], Gives[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[Gives[R]]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Gives[R]], /) -> Task[P, R]: ...


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
