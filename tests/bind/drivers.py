"""Every connection that an app can be bound to, behind one face: begin, write, enqueue, undo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from typing import Any, Protocol

import asyncpg
import django
import psycopg
from django.conf import settings as django_settings
from psycopg import conninfo
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from headrace import App
from headrace.core.driving import drive
from headrace.seam.records import Settlement

ELSEWHERE = "elsewhere"
"""A database without jobs."""
WRITE = "INSERT INTO public.revisions (uid) VALUES ('{}')"


class Undo(Exception):
    """Raised in a transaction to have it rolled back."""


@asynccontextmanager
async def undone(transaction: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """A transaction, or a savepoint, that is rolled back at its end."""
    with suppress(Undo):
        async with transaction as connection:
            yield connection
            raise Undo


class Blocking(Protocol):
    """A driver whose calls block."""

    def begin(self) -> AbstractContextManager[Any]:
        """A connection in a transaction: committed at the end, rolled back when something is raised."""
        ...

    def alone(self) -> AbstractContextManager[Any]:
        """A connection that commits every statement by itself."""
        ...

    def savepoint(self, connection: Any) -> AbstractContextManager[Any]: ...

    def execute(self, connection: Any, statement: str) -> None: ...


class Awaited(Protocol):
    """A driver whose calls are awaited."""

    def begin(self) -> AbstractAsyncContextManager[Any]: ...

    def alone(self) -> AbstractAsyncContextManager[Any]: ...

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]: ...

    async def execute(self, connection: Any, statement: str) -> None: ...


class Driver:
    """A driver that is awaited."""

    def __init__(self, driver: Awaited) -> None:
        self._driver = driver

    def begin(self) -> AbstractAsyncContextManager[Any]:
        return self._driver.begin()

    def alone(self) -> AbstractAsyncContextManager[Any]:
        return self._driver.alone()

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return self._driver.savepoint(connection)

    async def write(self, connection: Any, uid: str) -> None:
        await self._driver.execute(connection, WRITE.format(uid))

    async def execute(self, connection: Any, statement: str) -> None:
        await self._driver.execute(connection, statement)

    async def bound(self, app: App, connection: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """What a method of ``app.bind(connection)`` gives."""
        return await getattr(app.bind(connection), method)(*args, **kwargs)

    async def complete(self, app: App, connection: Any, settlement: Settlement) -> bool:
        """What the store says to a settlement in the transaction."""
        return await _joined(app, connection).complete(settlement)  # type: ignore[no-any-return]


class Threaded(Driver):
    """A driver that blocks, in a thread without an event loop: the place where it is at home."""

    def __init__(self, driver: Blocking) -> None:
        self._blocking = driver
        self._thread = ThreadPoolExecutor(1)

    def close(self) -> None:
        self._thread.shutdown()

    async def _do(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *args))

    @asynccontextmanager
    async def _within(self, make: Callable[..., AbstractContextManager[Any]], *args: Any) -> AsyncIterator[Any]:
        context = await self._do(make, *args)
        entered = await self._do(context.__enter__)
        try:
            yield entered
        except BaseException as error:
            if not await self._do(context.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            await self._do(context.__exit__, None, None, None)

    def begin(self) -> AbstractAsyncContextManager[Any]:
        return self._within(self._blocking.begin)

    def alone(self) -> AbstractAsyncContextManager[Any]:
        return self._within(self._blocking.alone)

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return self._within(self._blocking.savepoint, connection)

    async def write(self, connection: Any, uid: str) -> None:
        await self.execute(connection, WRITE.format(uid))

    async def execute(self, connection: Any, statement: str) -> None:
        await self._do(self._blocking.execute, connection, statement)

    async def bound(self, app: App, connection: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._do(lambda: getattr(app.bind(connection), method)(*args, **kwargs))

    async def complete(self, app: App, connection: Any, settlement: Settlement) -> bool:
        return await self._do(lambda: drive(_joined(app, connection).complete(settlement)))  # type: ignore[no-any-return]


def _joined(app: App, connection: Any) -> Any:
    tx = app.client.tx
    assert tx is not None
    return tx.join(connection)


# -- psycopg


class Psycopg:
    def __init__(self, url: str) -> None:
        self._url = url

    def begin(self) -> AbstractContextManager[Any]:
        return psycopg.connect(self._url)

    def alone(self) -> AbstractContextManager[Any]:
        return psycopg.connect(self._url, autocommit=True)

    def savepoint(self, connection: Any) -> AbstractContextManager[Any]:
        return connection.transaction()  # type: ignore[no-any-return]

    def execute(self, connection: Any, statement: str) -> None:
        connection.execute(statement)


class PsycopgAutocommit(Psycopg):
    """In a transaction all the same."""

    @contextmanager
    def begin(self) -> Iterator[Any]:
        with self.alone() as connection, connection.transaction():
            yield connection


class PsycopgStrange(Psycopg):
    """Rows are dicts, cursors take other placeholders, texts are bytes: none of our business."""

    @contextmanager
    def begin(self) -> Iterator[Any]:
        with psycopg.connect(
            self._url, cursor_factory=psycopg.RawCursor, row_factory=psycopg.rows.dict_row
        ) as connection:
            connection.execute("SET client_encoding TO SQL_ASCII")
            yield connection


class PsycopgAsync:
    def __init__(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            yield connection

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            yield connection

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return connection.transaction()  # type: ignore[no-any-return]

    async def execute(self, connection: Any, statement: str) -> None:
        await connection.execute(statement)


# -- asyncpg


class Asyncpg:
    def __init__(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self.alone() as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self._url)
        try:
            yield connection
        finally:
            await connection.close()

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return connection.transaction()  # type: ignore[no-any-return]

    async def execute(self, connection: Any, statement: str) -> None:
        await connection.execute(statement)


class AsyncpgPool(Asyncpg):
    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Any]:
        async with asyncpg.create_pool(self._url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
            yield connection


class AsyncpgStrange(Asyncpg):
    """A connection that has its own idea of JSON."""

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Any]:
        async with super().alone() as connection:
            await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=repr, decoder=len)
            yield connection


# -- SQLAlchemy


class AlchemyConnection:
    def __init__(self, url: str) -> None:
        self._engine = create_engine(dialect(url, "psycopg"), poolclass=NullPool)

    def begin(self) -> AbstractContextManager[Any]:
        return self._engine.begin()

    def alone(self) -> AbstractContextManager[Any]:
        return self._engine.execution_options(isolation_level="AUTOCOMMIT").connect()

    def savepoint(self, connection: Any) -> AbstractContextManager[Any]:
        return connection.begin_nested()  # type: ignore[no-any-return]

    def execute(self, connection: Any, statement: str) -> None:
        connection.execute(text(statement))


class AlchemySession(AlchemyConnection):
    def begin(self) -> AbstractContextManager[Any]:
        return sessionmaker(self._engine).begin()

    def alone(self) -> AbstractContextManager[Any]:
        return Session(self._engine.execution_options(isolation_level="AUTOCOMMIT"))


class AlchemyScoped(AlchemySession):
    @contextmanager
    def begin(self) -> Iterator[Any]:
        scoped = scoped_session(sessionmaker(self._engine))
        with scoped.begin():
            yield scoped


class AlchemyAsyncConnection:
    def __init__(self, url: str, driver: str) -> None:
        self._engine = create_async_engine(dialect(url, driver), poolclass=NullPool)

    def begin(self) -> AbstractAsyncContextManager[Any]:
        return self._engine.begin()

    def alone(self) -> AbstractAsyncContextManager[Any]:
        return self._engine.execution_options(isolation_level="AUTOCOMMIT").connect()

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return connection.begin_nested()  # type: ignore[no-any-return]

    async def execute(self, connection: Any, statement: str) -> None:
        await connection.execute(text(statement))


class AlchemyAsyncSession(AlchemyAsyncConnection):
    def begin(self) -> AbstractAsyncContextManager[Any]:
        return async_sessionmaker(self._engine).begin()

    def alone(self) -> AbstractAsyncContextManager[Any]:
        return AsyncSession(self._engine.execution_options(isolation_level="AUTOCOMMIT"))


class AlchemyAsyncScoped(AlchemyAsyncSession):
    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        scoped = async_scoped_session(async_sessionmaker(self._engine), scopefunc=asyncio.current_task)
        async with scoped.begin():
            yield scoped
        await scoped.remove()


def dialect(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


# -- Django


class Django:
    """Settings are of the process: the alias of a database is its name."""

    def __init__(self, url: str) -> None:
        if not django_settings.configured:
            here = _database(url)
            names = ("default", "postgres", ELSEWHERE)
            django_settings.configure(DATABASES={name: here | {"NAME": name} for name in names}, USE_TZ=True)
            django.setup()
        from django.db import connections, transaction

        self._alias = _database(url)["NAME"]
        self._connections = connections
        self._transaction = transaction

    @contextmanager
    def begin(self) -> Iterator[Any]:
        try:
            with self._transaction.atomic(using=self._alias):
                yield self._connections[self._alias]
        finally:
            self._connections.close_all()

    @contextmanager
    def alone(self) -> Iterator[Any]:
        yield self._connections[self._alias]
        self._connections.close_all()

    def savepoint(self, connection: Any) -> AbstractContextManager[Any]:
        return self._transaction.atomic(using=self._alias)  # type: ignore[no-any-return]

    def execute(self, connection: Any, statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)


def _database(url: str) -> dict[str, Any]:
    found = conninfo.conninfo_to_dict(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": found["dbname"],
        "USER": found["user"],
        "HOST": found["host"],
        "PORT": found["port"],
    }


DRIVERS: dict[str, Callable[[str], Driver]] = {
    "psycopg": lambda url: Threaded(Psycopg(url)),
    "psycopg autocommit": lambda url: Threaded(PsycopgAutocommit(url)),
    "psycopg strange": lambda url: Threaded(PsycopgStrange(url)),
    "psycopg async": lambda url: Driver(PsycopgAsync(url)),
    "asyncpg": lambda url: Driver(Asyncpg(url)),
    "asyncpg pool": lambda url: Driver(AsyncpgPool(url)),
    "asyncpg strange": lambda url: Driver(AsyncpgStrange(url)),
    "sqlalchemy Connection": lambda url: Threaded(AlchemyConnection(url)),
    "sqlalchemy Session": lambda url: Threaded(AlchemySession(url)),
    "sqlalchemy scoped_session": lambda url: Threaded(AlchemyScoped(url)),
    "sqlalchemy AsyncConnection psycopg": lambda url: Driver(AlchemyAsyncConnection(url, "psycopg")),
    "sqlalchemy AsyncConnection asyncpg": lambda url: Driver(AlchemyAsyncConnection(url, "asyncpg")),
    "sqlalchemy AsyncSession psycopg": lambda url: Driver(AlchemyAsyncSession(url, "psycopg")),
    "sqlalchemy AsyncSession asyncpg": lambda url: Driver(AlchemyAsyncSession(url, "asyncpg")),
    "sqlalchemy async_scoped_session": lambda url: Driver(AlchemyAsyncScoped(url, "asyncpg")),
    "django": lambda url: Threaded(Django(url)),
}
