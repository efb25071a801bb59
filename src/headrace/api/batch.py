"""A batch task: one handler call for many jobs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar, Unpack, get_args, get_origin, get_type_hints

from headrace.api.blocking import BLOCKING, Blocking
from headrace.api.handle import Handle
from headrace.api.loop_guard import needs_loop
from headrace.api.options import BatchOptions, JobOptions
from headrace.api.registered import Registered, TaskOwner
from headrace.api.sync_handle import SyncHandle
from headrace.core.callables import check_handler, is_async, written
from headrace.core.numbers import check_whole
from headrace.errors import CodecError, ConfigError, InvalidJob
from headrace.payloads.codec import JSON, JsonSerde
from headrace.payloads.offload import decode_result
from headrace.seam.records import Leased
from headrace.text import shown
from headrace.types import NewJob
from headrace.worker.given import given_types
from headrace.worker.handler import Handler
from headrace.worker.job import Job
from headrace.worker.middleware import Middleware, compose_many

T = TypeVar("T")


class BatchTask(Registered, Generic[T]):
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
        self, owner: TaskOwner, function: Callable[[list[Job[T]]], Awaitable[Any]], name: str, options: BatchOptions
    ) -> None:
        if callable(function):
            check_handler(function, f"batch task {name}")
        if not is_async(function):
            raise ConfigError(f"batch task {name}: expected an async function, got {shown(function)}")
        super().__init__(owner, function, name, options, f"batch task {name}")
        self._size = check_whole(options.get("size", 100), f"batch task {name}: size")
        payload, self._given = _parameters(function, f"batch task {name}")
        self._payloads: JsonSerde[Any] = JsonSerde(payload)

    def __repr__(self) -> str:
        return f"BatchTask({self.name!r}, queue={self.queue!r}, size={self._size})"

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
        return self._made(packer.envelope.wrap(body, JSON, f"batch task {self.name}: payload"), packer)

    @needs_loop("its enqueue_sync(…)")
    async def enqueue(self, payload: T, **options: Unpack[JobOptions]) -> Handle[Any]:
        """Store a job; returns when it is durable."""
        return await self._store(self.job(payload, **options))

    async def _store(self, job: NewJob) -> Handle[Any]:
        client = self._owner.client
        return Handle(client, await client.enqueue(job), self.results)

    def enqueue_sync(self, payload: T, **options: Unpack[JobOptions]) -> SyncHandle[Any]:
        """``enqueue`` for code without an event loop. Blocks until the job is durable."""
        return self._enqueue_blocking(BLOCKING, payload, **options)

    def _enqueue_blocking(self, blocking: Blocking, /, payload: T, **options: Unpack[JobOptions]) -> SyncHandle[Any]:
        job = self.job(payload, **options)
        inserted = blocking._insert(self._owner, job, f"{self._short}.enqueue(…)")
        return SyncHandle(blocking, Handle(self._owner.client, inserted, self.results))

    def call_sync(self, payload: T, **options: Unpack[JobOptions]) -> Any:
        """``call`` for code without an event loop. Blocks until there is a result."""
        return self._call_blocking(BLOCKING, payload, **options)

    def _call_blocking(self, blocking: Blocking, /, payload: T, **options: Unpack[JobOptions]) -> Any:
        return blocking._do(self._owner.client, lambda: self.call(payload, **options), f"{self._short}.call(…)")

    @needs_loop("its call_sync(…)")
    async def call(self, payload: T, **options: Unpack[JobOptions]) -> Any:
        """Have a worker run it, and wait for its result: ``options(wait=…)`` says how long, 30 s by default."""
        task, client = self.options(**options), self._owner.client
        job_id, cell = await client.call(task.job(payload), task._wait)
        return await decode_result(client.packer.envelope, cell, self.results, job_id)

    def handler(self, middleware: Sequence[Middleware]) -> Handler:
        """The task, ready to run in one worker."""
        batch = compose_many(middleware, self._with_given("worker"))
        return Handler(**self._handling(), load=self._load, batch=batch, batch_size=self._size)

    def _load(self, leased: Leased) -> Any:
        return self._owner.client.packer.decode(leased, self._payloads)


def _parameters(function: Callable[..., Any], what: str) -> tuple[Any, dict[str, Any]]:
    """The type of the payloads, and what a worker fills in."""
    try:
        hints = get_type_hints(written(function))
    except Exception as error:
        raise ConfigError(f"{what}: an annotation cannot be resolved ({error})") from error
    parameters = inspect.signature(function).parameters
    given = given_types(parameters.values(), hints, what)
    others = [name for name in parameters if name not in given]
    if len(others) != 1:
        raise ConfigError(
            f"{what}: expected one parameter, the list of jobs, besides those that are given, got {len(others)}"
        )
    hint = hints.get(others[0], list)
    if hint is not list and get_origin(hint) is not list:
        raise ConfigError(f"{what}: expected its parameter to be a list of jobs, got {shown(hint)}")
    [jobs] = get_args(hint) or (None,)
    return (get_args(jobs) or (Any,))[0], given
