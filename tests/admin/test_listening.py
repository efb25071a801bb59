"""Events across processes: told while somebody listens, exact in counts, and silent about what is private."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from headrace import Admin, App, EventKind, Retry
from headrace.backends.memory.events import MemoryEvents
from headrace.core.clock import ManualClock
from headrace.core.events import Event, Observers
from headrace.core.feed import Digest, Feed, read_digest
from headrace.core.tasks import Tasks
from headrace.seam.events import LONGEST
from tests.facades.harness import Store, within, working


class Heard:
    """What was heard so far."""

    def __init__(self) -> None:
        self.tallies: Counter[tuple[str, str, str]] = Counter()
        self.happenings: list[Any] = []
        self.changed = asyncio.Event()

    async def hear(self, stream: AsyncIterator[Digest]) -> None:
        async for digest in stream:
            for tally in digest.tallies:
                self.tallies[tally.queue, tally.task, tally.what] += tally.count
            self.happenings += digest.happenings
            self.changed.set()

    async def until(self, name: tuple[str, str, str], count: int) -> None:
        while self.tallies[name] < count:
            self.changed.clear()
            await within(self.changed.wait())

    async def happened(self, kind: str) -> None:
        while kind not in {one.kind for one in self.happenings}:
            self.changed.clear()
            await within(self.changed.wait())


async def telling(app: App) -> None:
    """Wait until the app has noticed that somebody listens."""
    feed = app.client._feed
    assert feed is not None
    await within(feed.telling.wait())


async def test_another_process_hears_of_every_job(store: Store) -> None:
    """An app that works, one that enqueues and one that listens share nothing but the store."""
    working_app, producer, admin = store.app(), store.app(), Admin(store.client())
    failures = 0

    @working_app.task(queue="mail", name="send")
    async def send(user: int) -> Any:
        nonlocal failures
        if user == 3 and not failures:
            failures += 1
            return Retry(after=0, error="the secret of user 3")
        return None

    remote = producer.task(queue="mail", name="send")(send.function)
    heard = Heard()
    async with working_app, producer, admin.client, admin.listening.listen() as stream, asyncio.TaskGroup() as group:
        listening = group.create_task(heard.hear(stream))
        async with working(working_app):
            await remote.enqueue(0)
            for app in (producer, working_app):
                await telling(app)
            before = heard.tallies.copy()
            await producer.enqueue_many([remote.job(user) for user in range(20)])
            await heard.until(("mail", "send", "enqueued"), before["mail", "send", "enqueued"] + 20)
            await heard.until(("mail", "send", "retried"), before["mail", "send", "retried"] + 1)
            await heard.until(("mail", "send", "completed"), before["mail", "send", "completed"] + 20)
        listening.cancel()
    assert "retrying" in {one.kind for one in heard.happenings}
    assert "secret" not in str(heard.happenings)


async def test_a_worker_that_starts_is_heard_of(store: Store) -> None:
    """Also if its process has just asked in vain whether anybody listens, and would ask again only in seconds."""
    app, admin = store.app(), Admin(store.client())
    app.task(queue="mail", name="send")(_nothing)
    heard = Heard()
    async with app, admin.client:
        await app.tasks["send"].enqueue()
        async with admin.listening.listen() as stream, asyncio.TaskGroup() as group:
            listening = group.create_task(heard.hear(stream))
            async with working(app):
                await heard.happened("worker_started")
            await heard.happened("worker_stopped")
            listening.cancel()
    kinds = [one.kind for one in heard.happenings]
    assert [kinds.count(kind) for kind in ("worker_started", "worker_stopped")] == [1, 1]
    assert {one.detail for one in heard.happenings if one.kind == "worker_started"} == {"mail"}


async def test_a_worker_that_had_started_before_anybody_listened_is_no_news(memory: Store) -> None:
    app, admin = memory.app(), Admin(memory.client())
    app.task(queue="mail", name="send")(_nothing)
    heard = Heard()
    async with app, working(app):
        feed = app.client._feed
        assert feed is not None
        while feed.news:
            await asyncio.sleep(0.01)
        async with admin.client, admin.listening.listen() as stream, asyncio.TaskGroup() as group:
            listening = group.create_task(heard.hear(stream))
            while not feed.telling.is_set():
                await app.tasks["send"].enqueue()
                await asyncio.sleep(0.05)
            await heard.until(("mail", "send", "completed"), 1)
            listening.cancel()
    assert "worker_started" not in {one.kind for one in heard.happenings}


async def _nothing() -> None: ...


async def test_nobody_pays_while_nobody_listens(memory: Store) -> None:
    app = memory.app()

    @app.task(queue="mail", name="send")
    async def send() -> None: ...

    async with app:
        await send.enqueue()
        await app.drain()
        assert app.client.observers.meter is None
        assert not app.client.observers


async def test_a_flood_is_sampled_and_counted() -> None:
    observers, events, tasks = Observers(), MemoryEvents(), Tasks()
    feed = Feed(events, observers, ManualClock(), tasks)
    feed.start()
    digests: list[Digest] = []
    async with events.listen() as stream:
        feed.poke()
        await within(feed.telling.wait())
        assert observers.meter is not None
        for number in range(10_000):
            observers.tell(Event(EventKind.RETRYING, b"i" * 16, "q" * 900, "t" * 900, error=ValueError("private")))
            observers.meter.count(f"queue-{number % 50}", "t", "retried")
        told, dropped = 0, 0
        while told + dropped < 10_000:
            message = await within(anext(stream))
            assert len(message) <= LONGEST
            digest = read_digest(message)
            assert digest is not None
            digests.append(digest)
            told += len(digest.happenings)
            dropped += digest.dropped
            if len(digests) >= 20:
                break
        assert 0 < told <= 200
        assert dropped == 10_000 - 200
    await feed.close()
    await tasks.close()
    assert not observers
    assert "private" not in str(digests)


def test_what_others_say_is_checked() -> None:
    for message in (b"", b"\x00", b"x" * 4_000, b"\x93\x01\x02\x03", b"\xc1"):
        assert read_digest(message) is None
