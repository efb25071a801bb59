"""Tasks that use Django's connections, one per thread: after those were lost, the next task has another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from headrace import App, Job, Next, Outcome, Queue, immediate, never
from tests.bind.conftest import Shop
from tests.bind.drivers import Driver
from tests.facades.harness import script, within
from tests.postgres import server

ALIAS = "postgres"
KEPT = {"CONN_MAX_AGE": None}
"""Connections are kept for ever; without this Django closes them at the end of each request."""
CHECKED = KEPT | {"CONN_HEALTH_CHECKS": True}


@pytest.fixture
def settings(use: Callable[[str], Driver], monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Changes what Django does with its connections."""
    use("django")
    from django.db import connections

    def change(given: dict[str, Any]) -> None:
        for name, value in given.items():
            monkeypatch.setitem(connections.settings[ALIAS], name, value)

    return change


def server_process() -> int:
    """The server's process behind Django's connection of this thread."""
    from django.db import connections

    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def lose(shop: Shop, process: int) -> None:
    """The server ends the connection, as in a restart or by an idle timeout of a pooler."""
    shop.run(f"SELECT pg_terminate_backend({process}, 10000)")


@asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    async with app:
        work = asyncio.ensure_future(app.work())
        yield
        app.stop()
        await within(work)


@pytest.mark.parametrize("given", [{}, CHECKED], ids=["closed after each", "kept and checked"])
async def test_a_plain_task(shop: Shop, settings: Callable[..., None], given: dict[str, Any]) -> None:
    settings(given)
    app = shop.another(concurrency=1)

    @app.task(retry=never())
    def ask() -> int:
        return server_process()

    async with working(app):
        for _ in range(2):
            lose(shop, await within(ask.call()))
        assert await within(ask.call())


async def test_connections_that_are_kept_are_kept(shop: Shop, settings: Callable[..., None]) -> None:
    """And one that is found broken fails one attempt, not all that follow."""
    settings(KEPT)
    app = shop.another(concurrency=1)

    @app.task(retry=immediate(2))
    def ask() -> int:
        return server_process()

    async with working(app):
        first = await within(ask.call())
        assert await within(ask.call()) == first
        lose(shop, first)
        handle = await ask.enqueue()
        assert await within(handle.result()) != first
        assert (await handle.info()).attempt == 1
        assert await within(ask.call()) == await handle.result()


async def test_a_task_that_raises(shop: Shop, settings: Callable[..., None]) -> None:
    settings({})
    app, seen = shop.another(concurrency=1), []

    @app.task(retry=immediate(2))
    def ask() -> None:
        seen.append(server_process())
        if len(seen) == 1:
            raise RuntimeError("so it goes")

    async with working(app):
        await within(ask.call())
    assert seen[0] != seen[1]


async def test_a_plain_handler_of_a_queue(shop: Shop, settings: Callable[..., None]) -> None:
    settings(CHECKED)
    queue = Queue[int, int]("numbers", shop.app.client, max_attempts=1)

    @queue.execute
    def ask(job: Job[int]) -> int:
        return server_process()

    async with queue:
        lose(shop, await within(queue.enqueue_and_wait("a", 1)))
        assert await within(queue.enqueue_and_wait("b", 1))


async def test_an_async_task_with_the_middleware_of_the_docs(shop: Shop, settings: Callable[..., None]) -> None:
    settings(CHECKED)
    from django.db import close_old_connections, connections

    app = shop.another(concurrency=1)

    @app.middleware
    async def fresh_connections(job: Job[Any], next: Next) -> Outcome:
        await sync_to_async(close_old_connections)()
        try:
            return await next(job)
        finally:
            await sync_to_async(close_old_connections)()

    @app.task(retry=never())
    async def ask() -> int:
        return await sync_to_async(server_process)()

    async with working(app):
        lose(shop, await within(ask.call()))
        assert await within(ask.call())
    await sync_to_async(connections.close_all)()


def test_a_process(tmp_path: Path) -> None:
    database = {"ENGINE": "django.db.backends.postgresql", "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}
    (tmp_path / "shop.py").write_text(f"""
import django
from django.conf import settings
from headrace import App, never
from tests.bind.drivers import _database

settings.configure(DATABASES={{"default": _database({server().url()!r}) | {database!r}}})
django.setup()
app = App("sqlite:///{tmp_path}/jobs.db", worker={{"concurrency": 1}})

@app.task(executor="process", retry=never())
def ask() -> int:
    from django.db import connection
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]
""")
    told = script(
        f"""
        import asyncio, sys
        sys.path.insert(0, {str(tmp_path)!r})
        import psycopg
        from shop import app, ask

        async def main():
            async with app:
                work = asyncio.ensure_future(app.work())
                first = await ask.call()
                assert await ask.call() == first
                with psycopg.connect({server().url()!r}) as connection:
                    connection.execute(f"SELECT pg_terminate_backend({{first}}, 10000)")
                print(await ask.call() != first)
                app.stop()
                await work

        asyncio.run(main())
        """,
        seconds=60,
    )
    assert told == ["True"]


def test_without_django_nothing_of_it_is_imported() -> None:
    told = script("""
        import sys
        from headrace import App, SyncApp

        app = App("memory://")

        @app.task
        def one() -> int:
            return 1

        with SyncApp(app) as jobs:
            handle = jobs.enqueue(one)
            jobs.drain()
            print(handle.result(), [name for name in sys.modules if name.startswith("django")])
    """)
    assert told == ["1", "[]"]
