"""A subscription to channels, on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from headrace.backends.redis.connection import Connection
from headrace.backends.redis.connections import Connections
from headrace.backends.redis.translate import Refused
from headrace.errors import Unavailable

_PATIENCE = 7.0
"""Seconds that the server has to let the listener in."""
_QUIET = 10.0
"""Seconds after which the server is asked again whether it is still there."""
_ANSWER = 5.0
"""Seconds that it has to answer that."""

Heard = Callable[[bytes, bytes], None]
"""Gets channel and message of what was published."""
Failed = Callable[[Exception], None]
"""Gets the reason why nothing more is heard."""


@asynccontextmanager
async def subscribed(
    connections: Connections, base: str, channels: Iterable[bytes], heard: Heard, failed: Failed, purpose: str
) -> AsyncIterator[None]:
    """Subscribe. Everything published from then on is heard."""
    connection = await connections.single(base, limit=_PATIENCE)
    watching: asyncio.Task[None] | None = None
    try:
        subscription = _Subscription(connection, heard, failed, purpose)
        await subscription.start(list(channels))
        watching = asyncio.get_running_loop().create_task(subscription.watch(), name=f"headrace-{purpose}")
        yield
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await connection.close()


class _Subscription:
    """What is heard on a connection."""

    def __init__(self, connection: Connection, heard: Heard, failed: Failed, purpose: str) -> None:
        self._connection = connection
        self._tell = heard
        self._failed = failed
        self._purpose = purpose
        self._missing = 0
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._started: asyncio.Future[None] = self._loop.create_future()

    async def start(self, channels: list[bytes]) -> None:
        self._missing = len(channels)
        self._connection.subscribe(self._heard, channels)
        try:
            async with asyncio.timeout(_ANSWER):
                await self._started
        except TimeoutError:
            raise self._silent() from None

    async def watch(self) -> None:
        """Ask the server now and then whether it is still there."""
        while True:
            await asyncio.sleep(_QUIET)
            asked = self._loop.time()
            self._connection.send("PING")
            await asyncio.sleep(_ANSWER)
            if self._heard_at < asked:
                self._failed(self._silent())
                return

    def _silent(self) -> Unavailable:
        return Unavailable(f"{self._connection.where}: no answer on the connection for {self._purpose}")

    def _heard(self, said: Any) -> None:
        self._heard_at = self._loop.time()
        problem: Exception | None = said if isinstance(said, Refused) else None
        if said is None:
            where = self._connection.where
            problem = Unavailable(f"{where} cannot serve just now: the connection for {self._purpose} broke")
        if problem is not None:
            if self._started.done():
                self._failed(problem)
            else:
                self._started.set_exception(problem)
        elif said[0] == b"subscribe":
            self._missing -= 1
            if not self._missing and not self._started.done():
                self._started.set_result(None)
        elif said[0] == b"message":
            self._tell(said[1], said[2])
