"""A batch task: one handler call for many jobs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from headrace.client import Owner
from headrace.core.codec import JSON, JsonSerde
from headrace.core.handler import Handler
from headrace.core.middleware import Middleware, compose_many
from headrace.core.names import check_name
from headrace.core.retry import RetryPolicy
from headrace.durations import micros
from headrace.errors import CodecError, ConfigError, InvalidJob
from headrace.handle import Handle
from headrace.job import Job
from headrace.records import Leased
from headrace.shown import shown
from headrace.types import Duration, Encoded, NewJob

T = TypeVar("T")

_NOTHING: JsonSerde[Any] = JsonSerde()


class BatchTask(Generic[T]):
    """A handler of ``list[Job[T]]`` that returns one outcome, result or exception per job, or None when all are done.

    If it raises, every job of the batch has failed that attempt.
    """

    def __init__(
        self,
        owner: Owner,
        function: Callable[[list[Job[T]]], Awaitable[Any]],
        *,
        name: str,
        queue: str,
        size: int,
        retry: RetryPolicy,
        timeout: Duration | None,
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"batch task {name}: expected an async function")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"batch task {name}: size: expected a whole number of at least 1, got {shown(size)}")
        if not isinstance(retry, RetryPolicy):
            raise ConfigError(f"batch task {name}: retry: expected a RetryPolicy, got {shown(retry)}")
        self.function = function
        self.name = check_name(name, "task")
        self.queue = check_name(queue, "queue")
        self._owner = owner
        self._size = size
        self._retry = retry
        self._timeout = None if timeout is None else micros(timeout, "timeout")
        self._payloads: JsonSerde[Any] = JsonSerde(_payload_type(function, name))

    def job(self, payload: T, **options: Any) -> NewJob:
        """A job for this handler; ``options`` are those of ``NewJob``."""
        try:
            body = self._payloads.encode(payload)
            self._payloads.decode(body)
        except CodecError as error:
            raise InvalidJob(f"batch task {self.name}: {error}") from error
        cell = self._owner.client.packer.envelope.seal(body, JSON, f"batch task {self.name}: payload")
        given = {
            "task": self.name,
            "queue": self.queue,
            "args": Encoded(cell),
            "id": self._owner.client.packer.new_id(),
        } | options
        try:
            return NewJob(**given)  # type: ignore[arg-type]
        except TypeError as error:
            raise InvalidJob(f"batch task {self.name}: {error}") from None

    async def enqueue(self, payload: T, **options: Any) -> Handle[Any]:
        """Store a job; returns when it is durable."""
        client = self._owner.client
        return Handle(client, await client.enqueue(self.job(payload, **options)), _NOTHING)

    def handler(self, middleware: Sequence[Middleware]) -> Handler:
        """The task made ready to run in one worker."""
        return Handler(
            task=self.name,
            load=self._load,
            retry=self._retry,
            result_serde=_NOTHING,
            result_ttl=micros(self._owner.client.settings.result_ttl),
            timeout=self._timeout,
            batch=compose_many(middleware, self.function),
            batch_size=self._size,
        )

    def _load(self, leased: Leased) -> Any:
        packer = self._owner.client.packer
        return packer.envelope.decode(packer.parameters(leased.cells), self._payloads, "payload")


def _payload_type(function: Callable[..., Any], name: str) -> Any:
    try:
        hints = get_type_hints(function)
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
