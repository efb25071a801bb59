"""PostgreSQL servers that stop taking writes: read-only ones, standbys, and a standby that becomes the primary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from servers.postgres import Postgres

from headrace import App, Event, EventKind, JobState, NewJob, Settings
from headrace.admin.admin import open_admin
from headrace.api.connection import open_backend
from headrace.backends.postgres import PostgresBackend
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Cancel, Claim, Reap, Selector
from headrace.testing.conformance.base import LEASE, T0, job_id, row, settle
from tests.postgres import root
from tests.worker.conftest import FAST, Told, working

FOLLOWED = 60.0
"""Seconds within which a worker uses the new primary."""
RED = 60.0
"""Seconds within which a worker says that it does not get through."""


@pytest.fixture
def primary() -> Iterator[Postgres]:
    server = Postgres(root(), {"fsync": "off", "shared_buffers": "32MB"})
    server.start()
    yield server
    server.close()


@pytest.fixture
def standby(primary: Postgres) -> Iterator[Postgres]:
    """Follows the primary."""
    server = primary.standby()
    server.start()
    yield server
    server.close()


def set_up(server: Postgres, **settings: str) -> None:
    """Change settings while the server runs."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        connection.execute("SELECT pg_reload_conf()")


def ask(server: Postgres, query: str) -> Any:
    """What an independent reader sees."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        answer = connection.execute(query).fetchone()
    assert answer is not None
    return answer[0]


async def until(seconds: float, done: Callable[[], Any]) -> None:
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.02)


class Steady:
    """A worker with work: every job runs until it is let go."""

    def __init__(self, url: str, max_lost: int = 0) -> None:
        self.app = App(url, worker=FAST | {"name": "random", "lease": "2s", "max_lost": max_lost}, patience="300ms")
        self.told = Told()
        self.app.observe(self.told)
        self.running = 0
        self.let_go = asyncio.Event()

        @self.app.task(name="work", queue="q")
        async def work(number: int) -> int:
            self.running += 1
            await self.let_go.wait()
            return number

        self.work = work

    async def put(self, count: int) -> list[bytes]:
        return [answer.id for answer in await self.app.client.insert(self.work.job(n) for n in range(count))]

    def count(self, kind: EventKind) -> int:
        return self.told.kinds().count(kind)

    @property
    def healthy(self) -> bool:
        assert self.app.worker is not None
        return self.app.worker.health().ok


async def test_a_server_that_is_read_only_for_a_while(primary: Postgres) -> None:
    """C12, F71: no false completion, no attempt and no loss counted, and nobody has to start anything again."""
    steady = Steady(primary.url())
    async with working(steady.app):
        ids = await steady.put(4)
        await until(60, lambda: steady.running == 4 and steady.healthy)
        set_up(primary, default_transaction_read_only="on")
        worker = steady.app.worker
        assert worker is not None
        await until(RED, lambda: not steady.healthy and "read-only" in worker.health().detail)
        with pytest.raises(Unavailable, match="read-only"):
            await steady.put(1)
        steady.let_go.set()
        away: Event = await steady.told.wait_for(EventKind.STORE_AWAY)
        assert isinstance(away.error, Unavailable)
        await asyncio.sleep(2.5)  # longer than a lease: all four run out
        assert steady.count(EventKind.COMPLETED) == 0
        assert ask(primary, "SELECT count(*) FROM headrace.leased") == 4
        set_up(primary, default_transaction_read_only="off")
        await until(FOLLOWED, lambda: steady.count(EventKind.COMPLETED) == 4 and steady.healthy)
        backend = await steady.app.client.backend()
        records = [record for record in await backend.fetch(ids) if record]
    assert [record.state for record in records] == [JobState.COMPLETED] * 4
    assert {(record.attempt, record.lost) for record in records} == {(0, 0)}
    assert EventKind.STORE_BACK in steady.told.kinds()
    assert steady.count(EventKind.FAILED) == 0


CALLS: dict[str, Callable[[Backend], Awaitable[Any]]] = {
    "insert": lambda backend: backend.insert([row(2)], T0),
    "claim": lambda backend: backend.claim(Claim("w1", ("q",), 1, LEASE), T0),
    "renew": lambda backend: backend.renew(Beat("w1", "w1", ("q",), LEASE), T0),
    "reap": lambda backend: backend.reap(Reap(), T0 + LEASE),
    "alter": lambda backend: backend.alter(Selector(ids=[job_id(1)]), Cancel(), T0),
}


async def test_a_standby_decides_nothing(primary: Postgres, standby: Postgres) -> None:
    """F76: one is not even listened to, unless the URL asks for that; and then it refuses every write."""
    store = PostgresBackend(primary.url())
    await store.open()
    await store.insert([row(1), row(3)], T0)
    [job] = (await store.claim(Claim("w1", ("q",), 1, LEASE), T0)).jobs
    await until(60, lambda: ask(standby, "SELECT count(*) FROM pg_tables WHERE tablename = 'leased'"))
    await until(60, lambda: ask(standby, "SELECT count(*) FROM headrace.leased") == 1)

    backend = PostgresBackend(standby.url())
    with pytest.raises(Unavailable, match="read-only just now, as a standby is"):
        await backend.open()

    reader = open_backend(f"{standby.url()}?target_session_attrs=any")
    await reader.open()
    calls = CALLS | {"finish": lambda backend: backend.finish([settle(job)], T0)}
    for name, call in calls.items():
        with pytest.raises(Unavailable, match="read-only"):
            raise AssertionError(f"{name} answered {await call(reader)}")
    assert await store.finish([settle(job)], T0) == [JobState.COMPLETED]
    await reader.close()
    await store.close()


async def in_step(primary: Postgres, standby: Postgres) -> None:
    """From now on nothing is acknowledged that the standby does not have."""
    await until(60, lambda: ask(primary, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))
    set_up(primary, synchronous_standby_names="*")
    await until(60, lambda: ask(primary, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"))


@pytest.mark.parametrize("demotion", ["killed", "fenced off"])
async def test_a_promotion_is_followed(demotion: str, primary: Postgres, standby: Postgres) -> None:
    """C13, F71: by the same processes, and with a synchronous standby nothing acknowledged is lost. A primary that is
    fenced off lives on, refuses writes, and keeps every connection open."""
    steady = Steady(f"postgresql://headrace@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres", max_lost=5)
    steady.let_go.set()
    acknowledged: list[bytes] = []

    async def produce() -> None:
        while True:
            with suppress(Unavailable):
                acknowledged.extend(await steady.put(3))

    async with working(steady.app):
        await in_step(primary, standby)
        producer = asyncio.ensure_future(produce())
        await until(60, lambda: steady.count(EventKind.COMPLETED) > 30)
        if demotion == "killed":
            primary.kill()
        else:
            set_up(primary, default_transaction_read_only="on")
        standby.promote()
        before = steady.count(EventKind.COMPLETED)
        await until(FOLLOWED, lambda: steady.count(EventKind.COMPLETED) > before + 30)
        producer.cancel()
        await asyncio.wait([producer])
        queue = "SELECT count(*) FROM headrace.ready"
        await until(60, lambda: ask(standby, queue) == 0 and ask(standby, queue.replace("ready", "leased")) == 0)
        backend = await steady.app.client.backend()
        records = [record for record in await backend.fetch(acknowledged[-1_000:]) if record]
    assert len(records) == len(acknowledged[-1_000:])
    assert {(record.state, record.attempt) for record in records} == {(JobState.COMPLETED, 0)}


async def test_lists_and_statistics_come_from_a_replica(primary: Postgres, standby: Postgres) -> None:
    settings = Settings.load({"url": primary.url(), "replica_url": standby.url()}, env={}, toml={})
    admin = open_admin(settings)
    async with admin.client as client:
        await client.insert([NewJob(task="send", queue="mail", args={"user": 7}) for _ in range(3)])
        await until(60, lambda: ask(standby, "SELECT count(*) FROM pg_tables WHERE tablename = 'ready'"))
        await until(60, lambda: ask(standby, "SELECT count(*) FROM headrace.ready") == 3)
        page = await admin.jobs("queue:mail args.user=7")
        assert len(page.jobs) == 3
        overview = await admin.overview()
        assert ([one.available for one in overview.queues], overview.from_replica) == ([3], True)
        details = await admin.job(page.jobs[0].id)
        assert details.job.args == {"user": 7}
        await admin.close()
