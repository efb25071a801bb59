"""That somebody listens, as others can see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from psycopg import AsyncConnection, Notify, sql

from headrace.backends.postgres.translate import translated
from headrace.errors import Unavailable

_QUIET = 10.0
"""Seconds without a message after which the server is asked whether it is still there."""
_AGAIN = 1.0
"""Seconds after which a listener that could not show itself tries again."""
_ANSWER = 5.0
"""Seconds that the server has to answer."""


class Presence:
    """Of a connection that listens: a shared advisory lock, which others find taken.

    Every role of the database can take it too, so nobody ever waits for it. While somebody has it to themselves, others
    find it taken all the same. Without a key, nothing is shown.
    """

    def __init__(self, connection: AsyncConnection[Any], *key: int) -> None:
        self._connection = connection
        numbers = sql.SQL(", ").join(map(sql.Literal, key))
        self._take = sql.SQL("SELECT pg_catalog.pg_try_advisory_lock_shared({})").format(numbers)
        self._shown = not key

    async def show(self) -> None:
        """Take the lock, if it can be had."""
        if self._shown:
            return
        [self._shown] = await (await self._connection.execute(self._take)).fetchone() or [False]

    async def hear(self, where: str, purpose: str, each: Callable[[Notify], None]) -> Exception:
        """Pass on what comes, until the connection fails; why it did."""
        try:
            while True:
                async for heard in self._connection.notifies(timeout=_QUIET if self._shown else _AGAIN):
                    each(heard)
                await self._check()
        except Exception as error:
            silent = Unavailable(f"{where}: no answer on the connection for {purpose}")
            failed = silent if isinstance(error, TimeoutError) else translated(error, where)
            failed.__cause__ = error
            return failed

    async def _check(self) -> None:
        """See that the server is still there; ``TimeoutError`` if it does not answer."""
        async with asyncio.timeout(_ANSWER):
            if self._shown:
                await self._connection.execute("SELECT")
            else:
                await self.show()
