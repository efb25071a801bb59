"""Topics into jobs, and events into topics, with librdkafka's own broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from headrace import App, Client, EventKind, JobState, NewJob, Settings
from headrace.bridges.kafka import KafkaSink, KafkaSource, Record
from headrace.errors import ConfigError
from headrace.seam.records import Requeue, Selector
from tests.facades.harness import within
from tests.postgres import server, stores


class Broker:
    """A broker in this process."""

    def __init__(self) -> None:
        self._host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        [node] = self._host.list_topics(timeout=60).brokers.values()
        self.config = {"bootstrap.servers": f"{node.host}:{node.port}", "log_level": 0}
        self.producer = Producer(self.config)

    def topic(self) -> str:
        """A new one; the broker makes it, with four partitions, when it is first asked for."""
        return f"orders-{uuid4().hex[:8]}"

    def send(self, topic: str, *values: object, partition: int = 0) -> None:
        for value in values:
            self.producer.produce(topic, value if isinstance(value, bytes) else json.dumps(value), partition=partition)
        assert self.producer.flush(60) == 0

    def group(self, **more: Any) -> dict[str, Any]:
        return self.config | {"group.id": f"shop-{uuid4().hex[:8]}", "session.timeout.ms": 6_000} | more

    def read(self, topic: str, count: int) -> list[Message]:
        reader, found = Consumer(self.group()), []
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
        while len(found) < count:
            found += reader.consume(count, 1)
        reader.close()
        return found


@pytest.fixture(scope="module")
def broker() -> Broker:
    return Broker()


@pytest.fixture
async def make_app(tmp_path: Path) -> AsyncIterator[Callable[[], App]]:
    made: list[App] = []

    def make() -> App:
        worker = {"lease": "30s", "reap": "50ms", "poll": "200ms", "name": "random"}
        settings = Settings.load({"url": server().url(), "worker": worker}, env={}, toml={})
        made.append(App(Client(stores.connect(tmp_path), settings)))
        return made[-1]

    yield make
    for app in made:
        await app.client.close()


class Shop:
    """An app whose task notes what it has got."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.shipped: list[int] = []

        @app.task(name="ship")
        async def ship(order: int) -> None:
            self.shipped.append(order)

        self.ship = ship

    async def stored(self) -> int:
        return len(await self.app.client.list_jobs(Selector(), limit=1_000))


@asynccontextmanager
async def reading(*sources: KafkaSource) -> AsyncIterator[None]:
    runs = [asyncio.ensure_future(source.run()) for source in sources]
    try:
        yield
    finally:
        for source in sources:
            source.stop()
        await within(asyncio.gather(*runs))


async def until(shop: Shop, count: int) -> None:
    """Wait for that many jobs."""

    async def look() -> None:
        while await shop.stored() < count:
            await asyncio.sleep(0.05)

    await within(look())


async def test_records_become_jobs_once(broker: Broker, make_app: Callable[[], App]) -> None:
    shop, topic, group = Shop(make_app()), broker.topic(), broker.group()
    broker.send(topic, *({"order": n} for n in range(50)))
    broker.send(topic, *({"order": n} for n in range(50, 100)), partition=1)
    async with reading(KafkaSource(shop.app, group, {topic: shop.ship})):
        await until(shop, 100)
    broker.send(topic, *({"order": n} for n in range(100, 120)), partition=2)
    async with reading(KafkaSource(Shop(make_app()).app, group, {topic: shop.ship})):
        await until(shop, 120)
    await within(shop.app.drain())
    assert sorted(shop.shipped) == [*range(120)]
    jobs = await shop.app.client.list_jobs(Selector(), limit=1_000)
    assert {job.source for job in jobs} >= {f"{topic}/0@49", f"{topic}/1@0", f"{topic}/2@19"}


async def test_what_is_stored_says_where_to_go_on_and_not_what_kafka_says(
    broker: Broker, make_app: Callable[[], App]
) -> None:
    """A process that dies between the two tells Kafka nothing. Here Kafka knows nothing at all of the second group."""
    shop, topic = Shop(make_app()), broker.topic()
    broker.send(topic, *({"order": n} for n in range(10)))
    source = KafkaSource(shop.app, broker.group(), {topic: shop.ship})
    async with reading(source):
        await until(shop, 10)
    broker.send(topic, {"order": 10})
    reset = KafkaSource(shop.app, broker.group(), {topic: shop.ship}, batch=1)
    reset._name = source._name
    async with reading(reset):
        await until(shop, 11)
    await within(shop.app.drain())
    assert sorted(shop.shipped) == [*range(11)]


async def test_two_readers_of_one_partition_store_nothing_twice(broker: Broker, make_app: Callable[[], App]) -> None:
    """As after a rebalance that one of them has not heard of: here they are in groups of their own, but read as one."""
    shop, topic = Shop(make_app()), broker.topic()
    broker.send(topic, *({"order": n} for n in range(200)))
    one, two = (KafkaSource(shop.app, broker.group(), {topic: shop.ship}, batch=7) for _ in range(2))
    two._name = one._name
    async with reading(one, two):
        await until(shop, 200)
    await within(shop.app.drain())
    assert sorted(shop.shipped) == [*range(200)]


async def test_a_poisoned_record_is_a_dead_letter_and_holds_up_no_other(
    broker: Broker, make_app: Callable[[], App]
) -> None:
    shop, topic = Shop(make_app()), broker.topic()
    broker.send(topic, {"order": 1}, b"{", {"order": "many"}, [], b"", {"order": 2})
    async with reading(KafkaSource(shop.app, broker.group(), {topic: shop.ship})):
        await until(shop, 6)
    await within(shop.app.drain())
    assert sorted(shop.shipped) == [1, 2]
    dead = await shop.app.client.list_jobs(Selector(states=frozenset({JobState.FAILED})))
    assert {job.source: job.reason for job in dead} == dict.fromkeys(
        [f"{topic}/0@{offset}" for offset in (1, 2, 3, 4)], "poisoned record"
    )
    [first, *_] = [await shop.app.get(job.id) for job in dead if job.source == f"{topic}/0@1"]
    assert f"record {topic}/0@1: DecodeError" in first.failures[-1].message


async def test_a_poisoned_record_that_is_requeued_is_tried_again(broker: Broker, make_app: Callable[[], App]) -> None:
    shop, topic, good = Shop(make_app()), broker.topic(), False

    def recipe(record: Record) -> NewJob | None:
        if not good:
            raise ValueError("not yet")
        return None if record.value == b"none" else shop.ship.job(int(record.value or b""))

    broker.send(topic, b"7", b"none")
    async with reading(KafkaSource(shop.app, broker.group(), {topic: recipe})):
        await until(shop, 2)
    await within(shop.app.drain())
    good = True
    await shop.app.client.alter_all(Selector(states=frozenset({JobState.FAILED})), Requeue())
    await within(shop.app.drain())
    assert shop.shipped == [7]


async def test_a_job_that_cannot_be_packed_is_poison_too(broker: Broker, make_app: Callable[[], App]) -> None:
    shop, topic = Shop(make_app()), broker.topic()

    def recipe(record: Record) -> NewJob:
        return NewJob(task="ship", args={"order": object() if record.value == b"1" else int(record.value or b"")})

    broker.send(topic, b"0", b"1", b"2")
    async with reading(KafkaSource(shop.app, broker.group(), {topic: recipe})):
        await until(shop, 3)
    await within(shop.app.drain())
    assert sorted(shop.shipped) == [0, 2]


async def test_a_full_queue_is_waited_for(broker: Broker, make_app: Callable[[], App]) -> None:
    shop, topic = Shop(make_app()), broker.topic()
    await shop.app.policies.set("default", depth=5)
    broker.send(topic, *({"order": n} for n in range(12)))
    async with reading(KafkaSource(shop.app, broker.group(), {topic: shop.ship}, batch=5)):
        await until(shop, 5)
        assert await shop.stored() == 5
        await shop.app.policies.set("default", depth=100)
        await until(shop, 12)
    await within(shop.app.drain())
    assert sorted(shop.shipped) == [*range(12)]


async def test_a_stop_does_not_wait_for_room(broker: Broker, make_app: Callable[[], App]) -> None:
    shop, topic, group = Shop(make_app()), broker.topic(), broker.group()
    await shop.app.policies.set("default", depth=1)
    broker.send(topic, {"order": 1}, {"order": 2})
    async with reading(KafkaSource(shop.app, group, {topic: shop.ship}, batch=1)):
        await until(shop, 1)
    await shop.app.policies.set("default", depth=100)
    async with reading(KafkaSource(Shop(make_app()).app, group, {topic: shop.ship})):
        await until(shop, 2)
    await within(shop.app.drain())
    assert sorted(shop.shipped) == [1, 2]


async def test_a_store_that_is_away_is_waited_for(broker: Broker, make_app: Callable[[], App]) -> None:
    shop, topic = Shop(make_app()), broker.topic()
    broker.send(topic, *({"order": n} for n in range(20)))
    async with shop.app, reading(KafkaSource(shop.app, broker.group(), {topic: shop.ship}, batch=4)):
        await until(shop, 4)
        server().kill()
        server().start()
        await until(shop, 20)
    await within(shop.app.drain())
    assert sorted(shop.shipped) == [*range(20)]


async def test_ends_of_jobs_go_to_a_topic(broker: Broker, make_app: Callable[[], App]) -> None:
    app, topic = make_app(), broker.topic()

    @app.task(name="half")
    async def half(number: int) -> float:
        return 1 / (number % 2)

    async with KafkaSink(broker.config, topic) as sink:
        app.observe(sink)
        handles = await app.enqueue_many([half.options(max_attempts=1, tenant="acme").job(n) for n in range(4)])
        await within(app.drain())
    found = [(message.key(), json.loads(message.value() or b"")) for message in broker.read(topic, 4)]
    assert sink.dropped == 0
    told = {key: (event["kind"], event["task"], event.get("error", {}).get("type")) for key, event in found if key}
    assert told == {
        str(handle.id).encode(): ("completed", "half", None) if n % 2 else ("failed", "half", "ZeroDivisionError")
        for n, handle in enumerate(handles)
    }
    assert not any("result" in event for _, event in found)
    assert {event["tenant"] for _, event in found} == {"acme"}
    assert all(message.timestamp()[1] > 0 for message in broker.read(topic, 4))


async def test_a_broker_that_is_away_costs_events_and_no_work(make_app: Callable[[], App]) -> None:
    app = make_app()

    @app.task(name="nothing")
    async def nothing() -> None: ...

    away = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": 5, "log_level": 0}
    async with KafkaSink(away, "events", kinds=EventKind, patience=0.1) as sink:
        app.observe(sink)
        await app.enqueue_many([nothing.job() for _ in range(20)])
        await within(app.drain())
    ended = await app.client.list_jobs(Selector(), limit=100)
    assert [job.state for job in ended] == [JobState.COMPLETED] * 20
    assert sink.dropped > 20


def test_bad_input(make_app: Callable[[], App]) -> None:
    app = App("memory://")
    good = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    with pytest.raises(ConfigError, match=r"config: expected group\.id"):
        KafkaSource(app, {"bootstrap.servers": "127.0.0.1:1"}, {"t": lambda record: None})
    with pytest.raises(ConfigError, match="topics: expected at least one topic"):
        KafkaSource(app, good, {})
    with pytest.raises(ConfigError, match="got a cooperative one"):
        KafkaSource(app, good | {"partition.assignment.strategy": "cooperative-sticky"}, {"t": lambda record: None})
    with pytest.raises(ConfigError, match=r"enable\.auto\.commit: expected false"):
        KafkaSource(app, good | {"enable.auto.commit": True}, {"t": lambda record: None})
    with pytest.raises(ConfigError, match="batch: expected"):
        KafkaSource(app, good, {"t": lambda record: None}, batch=0)


async def test_only_postgresql_can(broker: Broker) -> None:
    app, topic = App("memory://"), broker.topic()
    broker.send(topic, b"1")
    with pytest.raises(ConfigError, match="only on PostgreSQL; this app is on memory"):
        await within(KafkaSource(app, broker.group(), {topic: lambda record: None}).run())
