"""The source: records of Kafka topics become jobs, each exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from headrace.api.app import App
from headrace.api.bind import Binding
from headrace.bridges.kafka.poison import Poison
from headrace.bridges.kafka.record import Recipe, Record, jobs_of, read
from headrace.core.backoff import Backoff
from headrace.core.numbers import check_whole
from headrace.errors import ConfigError, HeadraceError, QueueFull, StoreFull, Unavailable
from headrace.seam.records import Step
from headrace.types import NewJob

log = logging.getLogger("headrace")

_LOOK = 0.5
"""Seconds that a look into the topics waits for records, and that a stop may take longer for it."""


class KafkaSource:
    """Makes jobs of the records of topics, in a loop of its own: ``await source.run()``.

    Jobs and the offsets of their records are stored in one transaction of PostgreSQL, so a record becomes its jobs
    once, whoever crashes when, and however partitions move between consumers. Kafka is told the offsets afterwards, for
    those who watch the lag.

    ``config`` goes to librdkafka; ``bootstrap.servers`` and ``group.id`` are needed. ``topics`` says for each topic
    what makes jobs of a record: a task, which gets the JSON object of the record as its arguments; or a function that
    returns jobs or none. A record of which none can be made goes to the dead letters, with its coordinates and its
    bytes, and holds up no other. When you have mended the cause, requeue it there.

    >>> from headrace import App
    >>> from headrace.bridges.kafka import KafkaSource
    >>> app = App("postgresql://localhost/shop")
    >>> @app.task
    ... async def ship(order: int) -> None: ...
    >>> orders = KafkaSource(app, {"bootstrap.servers": "localhost:9092", "group.id": "shop"}, {"orders": ship})
    >>> # asyncio.run(orders.run())
    """

    def __init__(self, app: App, config: Mapping[str, Any], topics: Mapping[str, Recipe], *, batch: int = 500) -> None:
        self._app = app
        self._config = _checked(config)
        self._topics = dict(topics)
        self._batch = check_whole(batch, "batch", 1)
        if not self._topics:
            raise ConfigError("topics: expected at least one topic and what makes jobs of its records")
        self._group = str(config["group.id"])
        self._name = f"kafka:{self._group}"
        self._poison = Poison(app, self._name, self._topics)
        self._binding = Binding(app.client, app.tasks)
        self._backoff = Backoff(Random())
        self._stopping = False
        self._looking: asyncio.Future[list[Message]] | None = None
        self._seen: dict[str, int | None] = {}
        """The partitions of this consumer, and what the store says is to be read next of them."""

    async def run(self) -> None:
        """Read until ``stop`` is called. Waits while the store is away or a queue has no room."""
        self._stopping = False
        loop = asyncio.get_running_loop()

        def assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            """Called in the thread that looks into the topics: start where the store says."""
            asyncio.run_coroutine_threadsafe(self._look_up(partitions), loop).result()
            consumer.assign(partitions)

        def revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                self._seen.pop(_part(partition), None)

        async with self._app:
            consumer = Consumer(self._config)
            try:
                consumer.subscribe([*self._topics], on_assign=assign, on_revoke=revoke, on_lost=revoke)
                while not self._stopping:
                    if records := await self._next(consumer):
                        await self._store(consumer, records)
            finally:
                if self._looking is not None:
                    await asyncio.wait([self._looking])
                await asyncio.to_thread(consumer.close)

    def stop(self) -> None:
        """Let ``run`` return once what was read is stored, or once the store does not take it: then it is read again.
        Callable from a signal handler."""
        self._stopping = True

    async def _look_up(self, partitions: Sequence[TopicPartition]) -> None:
        positions: dict[str, int] = {}
        while not self._stopping:
            try:
                async with self._binding.begin() as jobs:
                    positions = await jobs.positions(self._name)
                self._backoff.reset()
                break
            except Unavailable:
                await asyncio.sleep(self._backoff.pause())
        for partition in partitions:
            stored = self._seen[_part(partition)] = positions.get(_part(partition))
            if stored is not None:
                partition.offset = stored

    async def _next(self, consumer: Consumer) -> list[Record]:
        found = []
        self._looking = asyncio.ensure_future(asyncio.to_thread(consumer.consume, self._batch, _LOOK))
        for message in await asyncio.shield(self._looking):
            if (error := message.error()) is None:
                found.append(read(message))
            elif error.fatal():
                raise KafkaException(error)
            else:
                log.warning("%s: %s", self._name, error)
        return found

    async def _store(self, consumer: Consumer, records: Sequence[Record]) -> None:
        """Store the jobs of these records, and how far they go, as soon as the store takes them."""
        strict = False
        while records := [record for record in records if record.part in self._seen]:  # others have gone elsewhere
            last = {record.part: record for record in records}
            steps = [Step(part, self._seen[part], record.offset + 1) for part, record in last.items()]
            jobs = [job for record in records for job in self._jobs(record, strict=strict)]
            try:
                async with self._binding.begin() as bound:
                    if not await bound.advance(self._name, steps):
                        raise _ReadElsewhere
                    await bound.enqueue_many(jobs)
            except (Unavailable, QueueFull, StoreFull) as error:
                if self._stopping:  # nothing is lost: what is not stored is read again
                    return
                log.info("%s waits: %s", self._name, error)
                await self._wait(consumer)
            except _ReadElsewhere:
                await self._skip(consumer, last)
                return
            except HeadraceError:
                if strict:
                    raise
                strict = True
            else:
                self._backoff.reset()
                self._seen |= {step.part: step.next for step in steps if step.part in self._seen}
                consumer.commit(offsets=[_after(record) for record in last.values()], asynchronous=True)
                return

    async def _skip(self, consumer: Consumer, last: Mapping[str, Record]) -> None:
        """Another consumer has stored some of this already: go on from where the store says."""
        partitions = [_after(record) for record in last.values()]
        await self._look_up(partitions)
        for partition in partitions:
            await asyncio.to_thread(consumer.seek, partition)

    async def _wait(self, consumer: Consumer) -> None:
        """A pause in which the consumer stays a member of its group, and gets no records."""
        paused = consumer.assignment()
        consumer.pause(paused)
        await asyncio.to_thread(consumer.poll, self._backoff.pause())
        held = {_part(partition) for partition in consumer.assignment()}
        consumer.resume([partition for partition in paused if _part(partition) in held])

    def _jobs(self, record: Record, *, strict: bool = False) -> list[NewJob]:
        """The jobs of a record; with ``strict``, each has been packed for a try."""
        try:
            jobs = jobs_of(record, self._topics[record.topic])
            for job in jobs if strict else ():
                self._app.client.packer.pack(job)
        except Exception as error:
            return [self._poison.job(record, error)]
        return jobs


class _ReadElsewhere(Exception):
    """Rolls back what was to be stored."""


def _after(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition, record.offset + 1)


def _part(partition: TopicPartition) -> str:
    return f"{partition.topic}/{partition.partition}"


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    if missing := [name for name in ("bootstrap.servers", "group.id") if not config.get(name)]:
        raise ConfigError(f"config: expected {' and '.join(missing)}")
    if "cooperative" in str(config.get("partition.assignment.strategy", "")):
        raise ConfigError("partition.assignment.strategy: expected range or roundrobin, got a cooperative one")
    if config.get("enable.auto.commit"):
        raise ConfigError("enable.auto.commit: expected false: offsets are stored together with the jobs")
    return {"auto.offset.reset": "earliest", **config, "enable.auto.commit": False}
