"""One connection, and the backend on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection

from headrace.backends.postgres import PostgresBackend
from headrace.backends.postgres.arrays import register
from headrace.backends.postgres.bind import AsyncPostgresJoined
from headrace.backends.postgres.connections import Then
from headrace.backends.postgres.schema import Schema
from headrace.backends.postgres.translate import translated
from headrace.seam.records import Inserted, JobId, Row, Stamp
from tests.postgres import server

T = TypeVar("T")

_GLANCE = 0.001
"""Seconds between two looks at who waits for whom, as long as nothing is heard."""


class _Ear:
    """Remembers the hints that would have been sent."""

    def __init__(self) -> None:
        self.told: list[tuple[str, JobId | None]] = []

    def send(self, topics: Iterable[tuple[str, JobId | None]]) -> None:
        self.told += topics

    def count(self, topic: str, jobs: int) -> None:
        self.told.append((topic, None))

    def hush(self, notes: object, next_in: int | None) -> None:
        pass

    async def flush(self) -> None:
        pass


class _One:
    """What the backend takes for its pool."""

    where = "PostgreSQL"

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    async def rows(self, sql: str, params: Sequence[Any] = (), then: Then | None = None) -> list[Any]:
        try:
            cursor = await self._connection.execute(sql, params, binary=True)
            rows = await cursor.fetchall() if cursor.description else []
            if then is not None and (statement := then(rows)):
                await self._connection.execute(statement)
            return rows
        except Exception as error:
            raise translated(error, self.where) from error


class Paired(PostgresBackend):
    """A backend whose statements all go through one given connection, in the transaction that is open there, if any."""

    def __init__(self, connection: AsyncConnection[Any], schema: str) -> None:
        super().__init__("", schema=schema, listen=False)
        self._connection = connection
        self._connections = _One(connection)  # type: ignore[assignment]
        self._notifier = self.ear = _Ear()  # type: ignore[assignment]

    async def _insert(self, at: Stamp, params: tuple[Any, ...]) -> list[Any]:
        """As in any transaction that goes on: without the step that a known id would break."""
        return await self._call("insert", at, *params)

    async def _insert_one(self, row: Row, at: Stamp) -> bool:
        """The short way ends the transaction of a row whose id is known."""
        return False

    async def drop_day(self, at: int, age: int) -> int:
        """Drop the oldest day whose jobs have all but a few completed so long before; how many went with it."""
        await self._call("drop_day", at, 3, age)
        removed = 0
        while rows := await self._call("settle_day", 100):
            removed += rows[0][1]
        return removed

    async def enqueue(self, rows: Sequence[Row]) -> list[Inserted]:
        """Insert as a caller does in a transaction of its own."""
        joined = self.tx.join(self._connection)
        assert isinstance(joined, AsyncPostgresJoined)
        return await joined.insert(rows)

    async def say(self, sql: str) -> None:
        """One statement; ``{schema}`` is where the tables are."""
        await self._connections.rows(sql.replace("{schema}", self._schema))


class Session:
    """A connection with a backend on it, both for one test after another."""

    def __init__(self, connection: AsyncConnection[Any], schema: str) -> None:
        self.connection = connection
        self.pid = connection.info.backend_pid
        self.store = Paired(connection, schema)

    @classmethod
    async def connect(cls, schema: str) -> Session:
        """A new one."""
        connection = await AsyncConnection.connect(server().url(), autocommit=True, prepare_threshold=2)
        register(connection, (await Schema(schema).found(connection)).types)
        await connection.execute("SET deadlock_timeout = '1ms'")
        return cls(connection, schema)

    async def say(self, sql: str) -> None:
        """One statement or several."""
        await self.connection.execute(sql.encode())

    async def ask(self, sql: str) -> list[Any]:
        """The rows of one statement."""
        return await (await self.connection.execute(sql.encode(), binary=True)).fetchall()

    async def waits(self, pid: int) -> bool:
        """Whether another session waits for a lock."""
        cursor = await self.connection.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (pid,))
        [[waiting]] = await cursor.fetchall()
        return bool(waiting)

    async def until_stuck(self, pid: int, work: asyncio.Future[Any]) -> bool:
        """Return when the other session's work is done, or as soon as it waits for a lock: whether it waits."""
        while not (await asyncio.wait([work], timeout=_GLANCE))[0]:
            if await self.waits(pid) and not work.done():
                return True
        return False


async def within(work: Awaitable[T], seconds: float = 60) -> T:
    """The answer of ``work``, which must come in time."""
    async with asyncio.timeout(seconds):
        return await work
