"""A record of a Kafka topic, and the jobs that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from msgspec import Struct
from msgspec.structs import replace

from headrace.api.batch import BatchTask
from headrace.api.task import Task
from headrace.errors import InvalidJob
from headrace.text import shown
from headrace.types import NewJob


class Record(Struct, frozen=True):
    """A record as it was read.

    >>> from headrace.bridges.kafka import Record
    >>> Record("orders", 3, 1042, b'{"order": 7}').coordinates
    'orders/3@1042'
    """

    topic: str
    partition: int
    offset: int
    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    at: datetime | None = None
    """When it was made, if Kafka knows."""

    @property
    def part(self) -> str:
        """The topic and the partition."""
        return f"{self.topic}/{self.partition}"

    @property
    def coordinates(self) -> str:
        """Where it is to be found."""
        return f"{self.part}@{self.offset}"


Recipe = Task[Any, Any] | BatchTask[Any] | Callable[[Record], NewJob | Iterable[NewJob] | None]
"""What makes jobs of a record: a task, whose arguments the record has as a JSON object; or a function."""


def read(message: Message) -> Record:
    """The record of a message that is no error."""
    kind, millis = message.timestamp()
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        _bytes(message.value()),
        _bytes(message.key()),
        tuple((str(header[0]), _bytes(header[1])) for header in message.headers() or ()),
        None if kind == TIMESTAMP_NOT_AVAILABLE else datetime.fromtimestamp(millis / 1000, UTC),
    )


def jobs_of(record: Record, recipe: Recipe) -> list[NewJob]:
    """The jobs of a record. Raises whatever the recipe raises, and ``InvalidJob`` for what are no jobs."""
    if isinstance(recipe, Task):
        args = msgspec.json.decode(record.value or b"null")
        if not isinstance(args, dict):
            raise InvalidJob(f"expected a JSON object with the arguments of {recipe.name}, got {shown(args)}")
        made: Any = recipe.job(**args)
    elif isinstance(recipe, BatchTask):
        made = recipe.job(msgspec.json.decode(record.value or b"null"))
    else:
        made = recipe(record)
    jobs = [made] if isinstance(made, NewJob) else [] if made is None else list(made)
    for job in jobs:
        if not isinstance(job, NewJob):
            raise InvalidJob(f"expected jobs, as task.job(…) makes them, got {shown(job)}")
    return [job if job.source is not None else replace(job, source=record.coordinates) for job in jobs]


def _bytes(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None
