"""The connections of a backend: who may use them up, and who never waits for one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from servers.postgres import Postgres

from headrace import App, Client, EventKind, JobState, Settings, SyncApp
from headrace.api.connection import open_backend
from headrace.backends.postgres import PostgresBackend, connections
from headrace.errors import ConfigError, Unavailable
from headrace.seam.records import InsertStatus
from headrace.testing.conformance.base import T0, row
from tests.postgres import SCHEMA, root, server, stores
from tests.worker.conftest import FAST, Told, working

HANDLERS = 32


@pytest.fixture
def crowded() -> Iterator[Postgres]:
    """A server that has fewer connections to give than there are handlers who want one."""
    settings = {
        "fsync": "off",
        "shared_buffers": "32MB",
        "max_connections": "20",
        "superuser_reserved_connections": "0",
    }
    postgres = Postgres(root(), settings)
    postgres.start()
    yield postgres
    postgres.close()


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[PostgresBackend]:
    backend = stores.connect(tmp_path)
    await backend.open()
    yield backend
    await backend.close()


@pytest.fixture
def store_made(tmp_path: Path) -> None:
    async def make() -> None:
        backend = stores.connect(tmp_path)
        await backend.open()
        await backend.close()

    asyncio.run(make())


def sessions(backend: PostgresBackend) -> int:
    return len(backend._connections._idle)


async def test_handlers_that_take_every_connection_cost_nobody_a_lease(crowded: Postgres) -> None:
    """C19: leases are renewed and outcomes stored on connections that the worker had before, and keeps."""
    worker = {"concurrency": HANDLERS, "lease": "3s", "reap": "1h", "name": "random"}
    app = App(crowded.url(), worker=FAST | worker)
    told = Told()
    app.observe(told)
    refused = 0
    all_in, enough = asyncio.Barrier(HANDLERS + 1), asyncio.Event()

    @app.task(name="greedy", queue="q")
    async def greedy(number: int) -> int:
        nonlocal refused
        try:
            async with await psycopg.AsyncConnection.connect(crowded.url()):
                await all_in.wait()
                await enough.wait()
        except psycopg.OperationalError:
            refused += 1
            await all_in.wait()
            await enough.wait()
        return number

    async with working(app):
        backend = await app.client.backend()
        while not (await backend.stats()).workers:
            await asyncio.sleep(0.01)
        ids = [answer.id for answer in await app.client.insert(greedy.job(number) for number in range(HANDLERS))]
        await all_in.wait()
        assert refused >= HANDLERS - 20
        leases: set[int | None] = set()
        async with asyncio.timeout(60):
            while len(leases) < 5:
                leases |= {record.lease_until for record in await backend.fetch(ids[:1]) if record}
                await asyncio.sleep(0.05)
        enough.set()
        await told.wait_for(EventKind.COMPLETED, HANDLERS)
        records = [record for record in await backend.fetch(ids) if record]
    assert {(record.state, record.attempt, record.lost) for record in records} == {(JobState.COMPLETED, 0, 0)}
    assert len(records) == HANDLERS
    assert not {EventKind.LEASE_LOST, EventKind.STALLED} & set(told.kinds())


async def test_calls_that_wait_for_the_server_do_not_hold_up_the_heartbeat(store: PostgresBackend) -> None:
    """It has connections of its own, so it goes on while every one of the others waits behind a lock."""
    settings = Settings.load({"worker": FAST | {"name": "random", "lease": "3s", "reap": "1h"}}, env={}, toml={})
    app = App(Client(store.sibling(), settings))
    told = Told()
    app.observe(told)
    started, enough = asyncio.Event(), asyncio.Event()

    @app.task(name="work", queue="q")
    async def work() -> None:
        started.set()
        await enough.wait()

    async with working(app), asyncio.TaskGroup() as group:
        await app.client.insert([work.job()])
        await started.wait()
        with psycopg.connect(server().url()) as other:
            other.execute(f"LOCK TABLE {SCHEMA}.jobs IN ACCESS EXCLUSIVE MODE")
            backend = await app.client.backend()
            stuck = [group.create_task(backend.insert([row(number)], T0)) for number in range(12)]
            leases: set[Any] = set()
            async with asyncio.timeout(60):
                while len(leases) < 5:
                    leases |= set(other.execute(f"SELECT lease_until FROM {SCHEMA}.leased"))
                    await asyncio.sleep(0.05)
            assert not any(task.done() for task in stuck)
        enough.set()
        await told.wait_for(EventKind.COMPLETED)
    assert not {EventKind.LEASE_LOST, EventKind.STALLED} & set(told.kinds())


async def test_there_are_never_more_connections_than_allowed(tmp_path: Path) -> None:
    stores.connect(tmp_path)
    backend = PostgresBackend(server().url() + "?application_name=few", schema=SCHEMA, size=3)
    await backend.open()
    await asyncio.gather(*(backend.stats(T0) for _ in range(20)))
    with psycopg.connect(server().url()) as other:
        count = other.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'few'").fetchone()
    assert count == (3,)
    await backend.close()


async def test_connections_that_nobody_uses_are_closed_but_for_one(
    store: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_SPARE", 0.05)
    await asyncio.gather(*(store.stats(T0) for _ in range(4)))
    async with asyncio.timeout(60):
        while sessions(store) > 1:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert sessions(store) == 1


async def test_a_connection_is_not_used_for_ever(store: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LIFETIME", 0.0)
    await store.stats(T0)
    assert sessions(store) == 0
    await store.stats(T0)


async def test_a_server_that_has_no_more_connections_is_away_for_now(crowded: Postgres) -> None:
    first = PostgresBackend(crowded.url())
    await first.open()
    taken: list[psycopg.Connection] = []
    with suppress(psycopg.OperationalError):
        while True:
            taken.append(psycopg.connect(crowded.url()))
    second = first.sibling()
    with pytest.raises(Unavailable, match="too many clients"):
        await second.open()
    assert await first.stats(T0) is not None
    for connection in taken:
        connection.close()
    async with asyncio.timeout(60):
        while True:
            try:
                await second.open()
                break
            except Unavailable:
                await asyncio.sleep(0.02)
    await second.close()
    await first.close()


async def test_once_closed_nothing_is_connected_again(store: PostgresBackend) -> None:
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.stats(T0)
    await store.open()
    assert await store.stats(T0) is not None


async def test_a_caller_that_waits_for_a_connection_is_told_when_all_are_closed() -> None:
    """And is not cancelled: nobody has asked for that."""
    connected, over = asyncio.Event(), asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await over.wait()
        writer.close()

    mute = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = mute.sockets[0].getsockname()[1]
    few = connections.Connections(f"postgresql://u@127.0.0.1:{port}/db", "there", size=2, prepare=True)
    few._open, few._watch = True, few._watch_over()
    await anext(few._watch)
    call = asyncio.ensure_future(few.rows("SELECT 1"))
    async with asyncio.timeout(30):
        await connected.wait()
        await few.close()
        with pytest.raises(Unavailable, match="closed"):
            await call
        while few._places._value < 2:
            await asyncio.sleep(0.01)
    over.set()
    mute.close()


def test_what_the_url_says_goes_before_what_we_would_say() -> None:
    url = "postgresql://h/db?connect_timeout=7&target_session_attrs=any&keepalives_idle=9"
    said = psycopg.conninfo.conninfo_to_dict(PostgresBackend(url)._connections.conninfo)
    assert (said["connect_timeout"], said["target_session_attrs"], said["keepalives_idle"]) == ("7", "any", "9")
    assert said["tcp_user_timeout"] == "9000"


def test_a_url_that_cannot_be_read_is_told_without_its_password() -> None:
    with pytest.raises(ConfigError, match="colour") as told:
        PostgresBackend("postgresql://ada:secret@h/db?colour=blue", where="postgresql://***@h/db")
    assert "secret" not in str(told.value)


async def test_a_call_that_was_given_up_is_ended_on_the_server(store: PostgresBackend) -> None:
    with psycopg.connect(server().url()) as other:
        other.execute(f"LOCK TABLE {SCHEMA}.jobs IN ACCESS EXCLUSIVE MODE")
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        call = asyncio.ensure_future(store.insert([row(1)], T0))
        async with asyncio.timeout(30):
            while not other.execute(waiting).fetchone():
                await asyncio.sleep(0.01)
            call.cancel()
            while other.execute(waiting).fetchone():
                await asyncio.sleep(0.01)


async def test_a_batch_that_is_rolled_back_costs_no_job_that_comes_after_it(store: PostgresBackend) -> None:
    """The driver forgets all prepared statements then, those too that it knows nothing of."""
    backend = PostgresBackend(server().url(), schema=SCHEMA, size=1)
    await backend.open()
    await backend.insert([row(1, queue="q")], T0)
    await backend.insert([row(2, queue="q")], T0)
    for _ in range(4):
        await backend.stats(T0)
    heavy = [row(n, queue="q", cells={"parameters": bytes(400_000)}) for n in (2, 3, 4, 5)]
    statuses = [answer.status for answer in await backend.insert(heavy, T0)]
    assert statuses == [InsertStatus.SAME, InsertStatus.NEW, InsertStatus.NEW, InsertStatus.NEW]
    await backend.stats(T0)
    assert [answer.status for answer in await backend.insert([row(6, queue="q")], T0)] == [InsertStatus.NEW]
    await backend.close()


async def test_a_server_that_cannot_be_told_keeps_its_places_and_no_more(store: PostgresBackend) -> None:
    """Backends that stand still hear of no cancellation; nobody connects past them, and all is well when they go on."""
    backend = PostgresBackend(f"{server().url()}?application_name=still", schema=SCHEMA, size=2)
    await backend.open()
    await asyncio.gather(*(backend.stats(T0) for _ in range(4)))
    with psycopg.connect(server().url(), autocommit=True) as other:
        look = "SELECT pid FROM pg_stat_activity WHERE application_name = 'still'"
        pids = [pid for [pid] in other.execute(look)]
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(6):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await backend.stats(T0)
            assert {pid for [pid] in other.execute(look)} == set(pids)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    await backend.stats(T0)
    await backend.close()


def test_many_impatient_threads_have_few_connections(store_made: None) -> None:
    """A call that is given up is ended on the server, and counts until then."""
    url = f"{server().url()}?application_name=threads&schema={SCHEMA}"
    app = App(Client(open_backend(url), Settings(patience="200ms")))
    app.task(name="t", queue="q")(lambda: None)
    look = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'threads'"
    stuck = f"{look} AND state = 'active'"
    given_up, most = threading.Semaphore(0), 0
    ended = threading.Event()

    def call() -> None:
        while not ended.is_set():
            try:
                app.tasks["t"].enqueue_sync()  # type: ignore[attr-defined]
            except Unavailable:
                given_up.release()

    with (
        SyncApp(app),
        psycopg.connect(server().url(), options="-c statement_timeout=0") as besieger,
        psycopg.connect(server().url(), autocommit=True) as other,
        ThreadPoolExecutor(16) as threads,
    ):
        besieger.execute(f"LOCK TABLE {SCHEMA}.jobs, {SCHEMA}.queues IN ACCESS EXCLUSIVE MODE")
        calls = [threads.submit(call) for _ in range(16)]
        try:
            for _ in range(64):
                assert given_up.acquire(timeout=60)
                [found] = other.execute(look).fetchone() or (0,)
                most = max(most, found)
        finally:
            ended.set()
        for one in calls:
            one.result(60)
        while other.execute(stuck).fetchone() != (0,):
            time.sleep(0.05)
        besieger.rollback()
        assert app.tasks["t"].enqueue_sync()  # type: ignore[attr-defined]
    assert 0 < most <= 4 + 4 + 1  # of threads, of the loop that serves the rest, and one for hints


async def test_a_connection_that_was_not_waited_for_is_used_by_the_next(
    store: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gives up faster than the server lets him in would otherwise never get in."""
    backend = store.sibling()
    await backend.open()
    backend._connections._forget()
    connect, made = backend._connections._connect, asyncio.Event()

    async def slowly(*, prepare: bool) -> Any:
        session = await connect(prepare=prepare)
        await made.wait()
        return session

    monkeypatch.setattr(backend._connections, "_connect", slowly)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await backend.stats(T0)
    made.set()
    async with asyncio.timeout(60):
        while not sessions(backend):
            await asyncio.sleep(0.01)
    await backend.close()


async def test_a_statement_that_takes_too_long_is_ended_by_the_server(
    store: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a call that was given up is left behind on the server: here one that waits for a key of a transaction
    that does not end."""
    monkeypatch.setattr(connections, "LIMIT", 1.0)
    monkeypatch.setattr(connections, "GRACE", 10.0)
    backend = store.sibling()
    await backend.open()
    async with store._connections.connection() as other, other.transaction():
        await other.execute(f"LOCK TABLE {SCHEMA}.jobs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match="statement timeout"):
            await backend.insert([row(1)], T0)
        waiting = await (await other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")).fetchone()
    assert waiting == (0,)
    assert (await backend.insert([row(1)], T0))[0].status is InsertStatus.NEW
    await backend.close()
