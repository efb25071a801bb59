"""A shop: an app on PostgreSQL, and a table of its own beside the jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace import App, Client, Settings, never
from headrace.backends.postgres import PostgresBackend
from tests.bind.drivers import DRIVERS, ELSEWHERE, Driver, Threaded
from tests.postgres import server, stores

FAST = {"lease": "30s", "reap": "50ms", "poll": "200ms", "grace": "5s", "name": "random"}


class Shop:
    """What the tests look at. Its connection is none of those that are bound."""

    def __init__(self, url: str, make: Callable[[], PostgresBackend], connection: psycopg.Connection[Any]) -> None:
        self.url = url
        self._make = make
        self._connection = connection
        self.app = self.another()
        self.ran: list[tuple[str, int]] = []

        @self.app.task(name="extract", queue="extracts", retry=never())
        async def extract(uid: str, revision: int = 0) -> int:
            self.ran.append((uid, revision))
            return revision

        self.extract = extract

    def another(self, backend: PostgresBackend | None = None, **worker: Any) -> App:
        """One more app on the same store."""
        settings = Settings.load({"url": self.url, "worker": FAST | worker}, env={}, toml={})
        return App(Client(backend or self._make(), settings))

    def run(self, statement: str, *given: Any) -> list[Any]:
        """The first column of what a statement outside of any transaction gives."""
        cursor = self._connection.execute(statement, given or None)
        return [row[0] for row in cursor.fetchall()] if cursor.description else []

    @property
    def jobs(self) -> list[str]:
        """The tasks of all jobs that are stored, in the order of their ids."""
        return self.run("SELECT task FROM headrace.jobs ORDER BY id")

    @property
    def written(self) -> list[str]:
        """The business rows."""
        return self.run("SELECT uid FROM public.revisions ORDER BY uid")

    async def drain(self) -> None:
        """Run all that is due."""
        async with self.app:
            await self.app.drain()


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    backend = stores.connect(tmp_path)
    await backend.open()
    await backend.close()
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS public.revisions (uid text)")
        connection.execute("TRUNCATE public.revisions")
        shop = Shop(server().url(), lambda: stores.connect(tmp_path), connection)
        yield shop
        await shop.app.client.close()


@pytest.fixture(params=list(DRIVERS))
def driver(request: pytest.FixtureRequest, shop: Shop) -> Driver:
    """Every kind of connection."""
    return _made(request.param, shop.url, request)


@pytest.fixture(params=list(DRIVERS))
def lost_driver(request: pytest.FixtureRequest, shop: Shop) -> Driver:
    """Every kind of connection, to a database without jobs."""
    if not shop.run(f"SELECT 1 FROM pg_database WHERE datname = '{ELSEWHERE}'"):
        shop.run(f"CREATE DATABASE {ELSEWHERE}")
    return _made(request.param, server().url(ELSEWHERE), request)


@pytest.fixture
def use(request: pytest.FixtureRequest, shop: Shop) -> Callable[[str], Driver]:
    """One kind of connection, by name."""
    return lambda name: _made(name, shop.url, request)


def _made(name: str, url: str, request: pytest.FixtureRequest) -> Driver:
    driver = DRIVERS[name](url)
    if isinstance(driver, Threaded):
        request.addfinalizer(driver.close)
    return driver
