"""What an app can be bound to, and what it cannot."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import sql
from psycopg.errors import SerializationFailure
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from headrace import App, AsyncBound, Bound, Job, NewJob
from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres.schema import migrate
from headrace.errors import ConfigError, InvalidJob
from tests.bind.conftest import Shop
from tests.bind.drivers import Driver, dialect
from tests.postgres import server


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_only_postgresql_can(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind = url.partition(":")[0]
    with pytest.raises(
        ConfigError, match=f"only on PostgreSQL; this app is on {kind}. Enqueue after you have committed"
    ):
        App(url).bind(Session())


@pytest.mark.parametrize("thing", [None, "postgresql://localhost/shop", 7, object(), Path()])
def test_what_is_no_connection(thing: Any) -> None:
    with pytest.raises(ConfigError, match=f"expected a connection of psycopg, .*{type(thing).__qualname__}"):
        App(server().url()).bind(thing)


async def test_a_pool_is_no_connection() -> None:
    app = App(server().url())
    pools: list[Any] = [create_engine("sqlite://"), asyncpg.create_pool(server().url())]
    for thing in pools:
        with pytest.raises(ConfigError, match="a pool or an engine is none: take a connection from it"):
            app.bind(thing)


def test_another_kind_of_database() -> None:
    with Session(create_engine("sqlite://")) as session:
        bound = App(server().url()).bind(session)
        with pytest.raises(ConfigError, match="expected a SQLAlchemy connection to PostgreSQL, got one to sqlite"):
            bound.enqueue_many([NewJob(task="t")])


async def test_what_blocks_and_what_is_awaited(shop: Shop) -> None:
    with psycopg.connect(shop.url) as blocking:
        assert isinstance(shop.app.bind(blocking), Bound)
    async with await psycopg.AsyncConnection.connect(shop.url) as awaited:
        assert isinstance(shop.app.bind(awaited), AsyncBound)


async def test_what_is_no_task(shop: Shop) -> None:
    with psycopg.connect(shop.url) as connection:
        bound = shop.app.bind(connection)
        for thing in ("extract", shop.extract.function, shop.extract.job("a"), None):
            with pytest.raises(InvalidJob, match="expected a task of the app and its arguments"):
                bound.enqueue(thing)  # type: ignore[call-overload]
        with pytest.raises(InvalidJob, match="expected a NewJob, got str"):
            bound.enqueue_many(["extract"])  # type: ignore[list-item]
    assert shop.jobs == []


async def test_one_binding_serves_many_transactions(shop: Shop) -> None:
    """It keeps nothing of the connection's state: whether there is a transaction is asked each time."""
    connection = await asyncpg.connect(shop.url)
    bound = shop.app.bind(connection)
    async with connection.transaction():
        await bound.enqueue(shop.extract, "a")
    with pytest.raises(ConfigError, match="is in no transaction"):
        await bound.enqueue(shop.extract, "b")
    async with connection.transaction():
        await bound.enqueue(shop.extract, "c")
    await connection.close()
    await shop.drain()
    assert sorted(shop.ran) == [("a", 0), ("c", 0)]


async def test_a_blocking_session_on_top_of_an_async_one(shop: Shop) -> None:
    """``run_sync`` gives one out. Each of its statements leaves the call in the middle, and comes back to it."""
    async with async_sessionmaker(create_async_engine(dialect(shop.url, "asyncpg"), poolclass=NullPool)).begin() as on:
        await on.run_sync(lambda session: shop.app.bind(session).enqueue(shop.extract, "a"))
    await shop.drain()
    assert shop.ran == [("a", 0)]


async def test_a_pipeline_is_no_transaction(shop: Shop) -> None:
    """With statements under way, whether there is one is not known before they have ended."""
    with psycopg.connect(shop.url, autocommit=True) as connection, connection.pipeline():
        connection.execute("SELECT 1")
        with pytest.raises(ConfigError, match="commits every statement by itself"):
            shop.app.bind(connection).enqueue(shop.extract, "a")
        with connection.transaction():
            connection.execute("SELECT 1")
            shop.app.bind(connection).enqueue(shop.extract, "b")
    async with await psycopg.AsyncConnection.connect(shop.url, autocommit=True) as awaited, awaited.pipeline():
        await awaited.execute("SELECT 1")
        with pytest.raises(ConfigError, match="commits every statement by itself"):
            await shop.app.bind(awaited).enqueue(shop.extract, "c")
        async with awaited.transaction():
            await awaited.execute("SELECT 1")
            await shop.app.bind(awaited).enqueue(shop.extract, "d")
    await shop.drain()
    assert sorted(shop.ran) == [("b", 0), ("d", 0)]


async def test_several_at_once_on_one_connection(shop: Shop) -> None:
    """Drivers that take turns may be used by several at once, in a transaction or not in one."""
    async with await psycopg.AsyncConnection.connect(shop.url, autocommit=True) as connection:
        bound = shop.app.bind(connection)
        busy = asyncio.ensure_future(connection.execute("SELECT pg_sleep(0.2)"))
        refused = await asyncio.gather(
            *(bound.enqueue(shop.extract, "refused") for _ in range(5)), return_exceptions=True
        )
        await busy
        assert {type(error) for error in refused} == {ConfigError}
        async with connection.transaction():
            await asyncio.gather(*(bound.enqueue(shop.extract, str(n)) for n in range(5)))
    await shop.drain()
    assert sorted(shop.ran) == [(str(n), 0) for n in range(5)]


async def test_a_batch_task(shop: Shop) -> None:
    seen: list[str] = []

    @shop.app.batch
    async def index(jobs: list[Job[str]]) -> None:
        seen.extend(job.payload for job in jobs)

    with psycopg.connect(shop.url) as connection:
        shop.app.bind(connection).enqueue(index.options(priority=3), "word")
    await shop.drain()
    assert seen == ["word"]


async def test_options_of_a_job(shop: Shop) -> None:
    chosen = shop.extract.options(
        delay="1h", tenant="acme", priority=2, headers={"trace": "1\0"}, max_attempts=7, expires="2h", timeout="250ms"
    )
    with psycopg.connect(shop.url) as connection:
        bound = shop.app.bind(connection).enqueue(chosen, "a")
    async with shop.app:
        direct = await chosen.enqueue("a")
        one, other = await bound.info(), await direct.info()
    assert one.run_at is not None
    assert one.enqueued_at is not None
    assert (one.run_at - one.enqueued_at).total_seconds() == 3600
    same = ("queue", "task", "tenant", "priority", "headers", "max_attempts", "args", "state")
    assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
    assert len(set(shop.run("SELECT (timeout, expires_at - enqueued_at)::text FROM headrace.jobs"))) == 1


async def test_errors_of_the_driver_stay_what_they_are(shop: Shop) -> None:
    """Whoever retries on a serialization failure still sees one."""
    keyed = shop.extract.options(key="a")
    with psycopg.connect(shop.url) as one, psycopg.connect(shop.url) as other:
        one.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        one.execute("SELECT count(*) FROM public.revisions")
        shop.app.bind(other).enqueue(keyed, "a")
        other.commit()
        with pytest.raises(SerializationFailure):
            shop.app.bind(one).enqueue(keyed, "a")
        one.rollback()
        assert shop.app.bind(one).enqueue(keyed, "a").duplicate


@pytest.mark.parametrize(
    "name", ["psycopg", "asyncpg", "sqlalchemy Session", "sqlalchemy AsyncSession asyncpg", "django"]
)
async def test_a_schema_of_any_name(shop: Shop, use: Callable[[str], Driver], name: str) -> None:
    """Names are data: each driver has its own characters that mean something."""
    schema = """O'Hara's "100%s" :given $1 {given} \\"""
    async with await psycopg.AsyncConnection.connect(shop.url, autocommit=True) as connection:
        await migrate(connection, schema)
        app, driver = shop.another(PostgresBackend(shop.url, schema=schema)), use(name)

        @app.task(name="note")
        async def note(text: str) -> None: ...

        async with driver.begin() as bound:
            await driver.bound(app, bound, "enqueue", note.options(key=name), name)
        query = sql.SQL("SELECT task FROM {} WHERE key = {}").format(sql.Identifier(schema, "jobs"), name)
        assert await (await connection.execute(query)).fetchall() == [("note",)]


@pytest.mark.parametrize("bound", [False, True])
def test_forked_children_make_ids_of_their_own(bound: bool) -> None:
    """Who only binds never opens the client: no two processes may draw the same numbers, before they bind or after."""
    script = f"""
import os
import psycopg
from headrace import App

app = App("postgresql://127.0.0.1:1/nowhere")


@app.task
def note() -> None: ...


def tell() -> None:
    os.write(1, note.job().id[8:].hex().encode() + b"\\n")


for _ in range(2):
    if os.fork() == 0:
        if {bound}:
            app.bind(object.__new__(psycopg.Connection))
        tell()
        os._exit(0)
    os.wait()
tell()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    drawn = done.stdout.split()
    assert len(set(drawn)) == 3


def test_no_driver_is_imported_for_its_sake() -> None:
    script = """
import sys
from headrace import App
from headrace.errors import ConfigError

try:
    App("postgresql://127.0.0.1:1/nowhere").bind(object())
except ConfigError:
    print([name for name in ("asyncpg", "sqlalchemy", "django") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("fate", ["commit", "rollback"])
async def test_nobody_waits_for_a_transaction_that_names_a_new_queue(shop: Shop, fate: str) -> None:
    """Not even who names the same queue, nor whoever shares a batch with that one."""
    async with shop.app, await psycopg.AsyncConnection.connect(shop.url) as first:
        await shop.app.bind(first).enqueue(shop.extract.options(queue="new", key="mine"), "first")
        async with asyncio.timeout(60), await psycopg.AsyncConnection.connect(shop.url) as second:
            one = shop.extract.options(queue="new", group="g").job("one")
            two = shop.extract.options(queue="known").job("two")
            await shop.app.enqueue_many([one, two])
            await shop.app.bind(second).enqueue(shop.extract.options(queue="new"), "second")
            await second.commit()
            assert {queue.queue for queue in (await shop.app.client.stats()).queues} == {"new", "known"}
            await (first.commit() if fate == "commit" else first.rollback())
            await shop.app.drain(["new", "known"])
    assert {uid for uid, _ in shop.ran} == {"one", "two", "second"} | ({"first"} if fate == "commit" else set())


async def test_a_new_queue_is_known_from_the_commit_on(shop: Shop) -> None:
    """Before any worker has looked at it."""
    async with shop.app, await psycopg.AsyncConnection.connect(shop.url) as connection:
        for uid in ("a", "b"):
            handle = await shop.app.bind(connection).enqueue(shop.extract.options(queue="new", key="k" + uid), uid)
            await connection.commit()
        [queue] = (await shop.app.client.stats()).queues
        assert (queue.queue, queue.available) == ("new", 2)
        found = await shop.app.client.fetch(handle.id)
        assert found is not None
        assert found.queue == "new"
        assert shop.run("SELECT queue FROM headrace.jobs_v1") == ["new", "new"]
        again = await shop.extract.options(queue="new", key="kb").enqueue("b")
        assert again.id == handle.id
        await shop.app.drain(["new"])
        assert sorted(uid for uid, _ in shop.ran) == ["a", "b"]
