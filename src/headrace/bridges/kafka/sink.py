"""The sink: what happens to jobs, as records of a Kafka topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from confluent_kafka import KafkaError, Message, Producer

from headrace.core.events import Event, EventKind

log = logging.getLogger("headrace")

OUTCOMES = frozenset({EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED, EventKind.EXPIRED})


class KafkaSink:
    """An observer that sends events to a topic, keyed by the job's id: ``app.observe(sink)``.

    By default it sends the ends of jobs; ``kinds`` says otherwise, and ``kinds=EventKind`` sends everything that
    happens. An event is a JSON object without the job's arguments and result. The sink never makes a worker wait: what
    finds no place in librdkafka's buffer is ``dropped``, and so is what a process takes along when it is killed. Leave
    ``async with`` to send what is left.

    >>> from headrace import App
    >>> from headrace.bridges.kafka import KafkaSink
    >>> app = App("memory://")
    >>> async def main() -> None:
    ...     async with KafkaSink({"bootstrap.servers": "localhost:9092"}, "job-events") as sink:
    ...         app.observe(sink)
    ...         await app.work()
    """

    def __init__(
        self, config: Mapping[str, Any], topic: str, *, kinds: Collection[EventKind] = OUTCOMES, patience: float = 30.0
    ) -> None:
        self._producer = Producer({"enable.idempotence": True, **config})
        self._topic = topic
        self._kinds = frozenset(kinds)
        self._patience = patience
        """Seconds for what is left when the sink is closed."""
        self.dropped = 0
        """Events that did not get to Kafka."""

    def __call__(self, event: Event) -> None:
        """Send an event, if it is of these kinds."""
        if event.kind not in self._kinds:
            return
        key = None if event.job_id is None else str(event.job_id)
        try:
            self._producer.produce(self._topic, _told(event), key, on_delivery=self._delivered)
        except BufferError:
            self._drop(1, "the buffer is full")
        self._producer.poll(0)

    async def __aenter__(self) -> KafkaSink:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is left."""
        if left := await asyncio.to_thread(self._producer.flush, self._patience):
            self._drop(left, f"not delivered in {self._patience:g} s")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._drop(1, str(error))

    def _drop(self, count: int, cause: str) -> None:
        if not self.dropped:
            log.warning("events for the topic %s are dropped: %s", self._topic, cause)
        self.dropped += count


def _told(event: Event) -> bytes:
    said = {
        "kind": event.kind.value,
        "job_id": None if event.job_id is None else str(event.job_id),
        "queue": event.queue,
        "task": event.task,
        "tenant": event.tenant,
        "key": event.key,
        "attempt": event.attempt,
        "worker": event.worker,
        "seconds": event.seconds,
        "count": event.count,
        "detail": event.detail,
        "error": None if event.error is None else {"type": type(event.error).__name__, "message": str(event.error)},
    }
    return msgspec.json.encode({name: value for name, value in said.items() if value not in (None, "", 0)})
