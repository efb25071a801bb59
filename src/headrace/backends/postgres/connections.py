"""Connections to the server, and how what goes wrong on them is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from headrace.backends.postgres.arrays import register
from headrace.backends.postgres.translate import translated

_PATIENCE = 10.0
"""Seconds to wait for a connection before the store counts as away."""


class Connections:
    """A small pool. Every call is one statement and one transaction: nothing is kept in a session, so that a pooler in
    transaction mode may stand between."""

    def __init__(self, conninfo: str, where: str, *, size: int, prepare: bool) -> None:
        self.conninfo = conninfo
        self.where = where
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] = AsyncConnectionPool(
            conninfo,
            min_size=1,
            max_size=size,
            open=False,
            timeout=_PATIENCE,
            max_idle=60,
            kwargs={"autocommit": True, "prepare_threshold": 2 if prepare else None},
            configure=self._configure,
            name="headrace",
        )

    async def open(self) -> None:
        """Connect; raises when the server cannot be reached."""
        try:
            await self._pool.open(wait=True, timeout=_PATIENCE)
        except Exception as error:
            await self._pool.close()
            raise await self._why(error) from error

    async def close(self) -> None:
        """Disconnect."""
        await self._pool.close()

    async def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        try:
            async with self._pool.connection() as connection:
                cursor = await connection.execute(sql, params, binary=True)
                return await cursor.fetchall() if cursor.description else []
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise translated(error, self.where) from error

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection for more than one statement."""
        try:
            async with self._pool.connection() as connection:
                yield connection
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise translated(error, self.where) from error

    async def single(self) -> AsyncConnection[Any]:
        """A connection of its own, outside of the pool; the caller closes it."""
        try:
            connection: AsyncConnection[Any] = await AsyncConnection.connect(
                self.conninfo, autocommit=True, prepare_threshold=None
            )
            await self._configure(connection)
        except Exception as error:
            raise translated(error, self.where) from error
        return connection

    async def _configure(self, connection: AsyncConnection[Any]) -> None:
        register(connection)

    async def _why(self, error: Exception) -> Exception:
        """The pool only says that it waited in vain; a connection of one's own says what for."""
        try:
            connection = await self.single()
        except Exception as reason:
            return reason
        await connection.close()
        return translated(error, self.where)
