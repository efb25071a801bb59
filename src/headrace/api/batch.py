"""A batch task: one handler call for many jobs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar, Unpack, get_args, get_origin, get_type_hints

from headrace.api.client import Client
from headrace.api.handle import Handle
from headrace.api.loop_guard import needs_loop
from headrace.api.options import BatchOptions, JobOptions, NewJobOptions, changed, length, shared
from headrace.core.callables import check_handler, is_async, written
from headrace.core.names import check_name
from headrace.core.store_access import Owner
from headrace.errors import CodecError, ConfigError, InvalidJob
from headrace.payloads.codec import JSON, JsonSerde
from headrace.payloads.offload import decode
from headrace.seam.records import Leased
from headrace.text import shown
from headrace.types import Duration, Encoded, NewJob
from headrace.worker.handler import Handler
from headrace.worker.job import Job
from headrace.worker.middleware import Middleware, compose_many
from headrace.worker.retry import RetryPolicy, exponential

T = TypeVar("T")

_NOTHING: JsonSerde[Any] = JsonSerde()


class BatchTask(Generic[T]):
    """A handler of ``list[Job[T]]`` that returns one outcome, result or exception per job, or None when all are done.

    If it raises, every job of the batch has failed that attempt.

    >>> import asyncio
    >>> from headrace import App, Job
    >>> app = App("memory://")
    >>> @app.batch(size=500)
    ... async def index(jobs: list[Job[str]]) -> None:
    ...     print(sorted(job.payload for job in jobs))
    >>> async def main() -> None:
    ...     async with app:
    ...         await app.enqueue_many(index.job(word) for word in ("b", "a"))
    ...         await app.drain()
    >>> asyncio.run(main())
    ['a', 'b']
    """

    def __init__(
        self,
        owner: Owner[Client],
        function: Callable[[list[Job[T]]], Awaitable[Any]],
        name: str,
        options: BatchOptions,
    ) -> None:
        size, retry = options.get("size", 100), options.get("retry") or exponential()
        if callable(function):
            check_handler(function, f"batch task {name}")
        if not is_async(function):
            raise ConfigError(f"batch task {name}: expected an async function, got {shown(function)}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"batch task {name}: size: expected a whole number of at least 1, got {shown(size)}")
        if not isinstance(retry, RetryPolicy):
            raise ConfigError(f"batch task {name}: retry: expected a RetryPolicy, got {shown(retry)}")
        self.function = function
        self.name = check_name(name, "task")
        self._options: NewJobOptions = shared(options, name)
        self._wait: Duration | None = "30s"
        self.queue = self._options.get("queue", "default")
        self.overflow = self._options.get("overflow")
        owner.client.packer.priority(self._options.get("priority", 0))
        self._owner = owner
        self._size = size
        self._retry = retry
        self._payloads: JsonSerde[Any] = JsonSerde(_payload_type(function, name))

    def __repr__(self) -> str:
        return f"BatchTask({self.name!r}, queue={self.queue!r}, size={self._size})"

    def options(self, **options: Unpack[JobOptions]) -> BatchTask[T]:
        """The same task with other options for the jobs that are made from it; see ``Task.options``."""
        other: BatchTask[T] = object.__new__(BatchTask)
        other.__dict__.update(self.__dict__)
        other._options, other._wait = changed(self._options, self._wait, options, f"batch task {self.name}: ")
        return other

    def job(self, payload: T, **options: Unpack[JobOptions]) -> NewJob:
        """A job for this handler."""
        if options:
            return self.options(**options).job(payload)
        try:
            body = self._payloads.encode(payload)
            self._payloads.decode(body)
        except CodecError as error:
            raise InvalidJob(f"batch task {self.name}: {error}") from error
        packer = self._owner.client.packer
        cell = packer.envelope.seal(body, JSON, f"batch task {self.name}: payload")
        return NewJob(task=self.name, args=Encoded(cell), id=packer.new_id(), **self._options)

    @needs_loop("SyncApp(app).enqueue_many([task.job(…)])")
    async def enqueue(self, payload: T, **options: Unpack[JobOptions]) -> Handle[Any]:
        """Store a job; returns when it is durable."""
        client = self._owner.client
        return Handle(client, await client.enqueue(self.job(payload, **options)), _NOTHING)

    @needs_loop()
    async def call(self, payload: T, **options: Unpack[JobOptions]) -> Any:
        """Have a worker run it, and wait for its result: ``options(wait=…)`` says how long, 30 s by default."""
        task, client = self.options(**options), self._owner.client
        cell = await client.call(task.job(payload), task._wait)
        return await decode(client.packer.envelope, cell, _NOTHING, "result")

    def handler(self, middleware: Sequence[Middleware]) -> Handler:
        """The task, ready to run in one worker."""
        given, settings = self._options, self._owner.client.settings
        return Handler(
            task=self.name,
            load=self._load,
            retry=self._retry,
            result_serde=_NOTHING,
            result_ttl=length(given, "result_ttl", settings.result_ttl),
            timeout=length(given, "timeout", None),
            batch=compose_many(middleware, self.function),
            batch_size=self._size,
        )

    def _load(self, leased: Leased) -> Any:
        packer = self._owner.client.packer
        return packer.envelope.decode(packer.parameters(leased.cells), self._payloads, "payload")


def _payload_type(function: Callable[..., Any], name: str) -> Any:
    try:
        hints = get_type_hints(written(function))
    except Exception as error:
        raise ConfigError(f"batch task {name}: an annotation cannot be resolved ({error})") from error
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 1:
        raise ConfigError(f"batch task {name}: expected one parameter, the list of jobs, got {len(parameters)}")
    hint = hints.get(parameters[0], list)
    if hint is not list and get_origin(hint) is not list:
        raise ConfigError(f"batch task {name}: expected its parameter to be a list of jobs, got {shown(hint)}")
    [jobs] = get_args(hint) or (None,)
    return (get_args(jobs) or (Any,))[0]
