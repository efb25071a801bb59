"""Events through a channel. In a cluster, all listeners subscribe at one server; what is told anywhere reaches it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headrace.backends.postbox import Postbox
from headrace.backends.redis.connection import Connection
from headrace.backends.redis.connections import Connections
from headrace.backends.redis.translate import Refused, translated
from headrace.errors import HeadraceError, Unavailable

log = logging.getLogger("headrace")

_LIMIT, _QUIET, _ANSWER = 7.0, 10.0, 5.0


class RedisEvents:
    """See :class:`headrace.seam.events.Events`."""

    def __init__(self, connections: Connections, prefix: str, base: Callable[[], str], where: str) -> None:
        self._connections = connections
        self._prefix = prefix
        self._channel = f"{prefix}:events:all".encode()
        self._base = base
        """Returns what leads to the server that listeners subscribe at."""
        self._where = where

    async def heard(self) -> bool:
        try:
            [_, listeners] = await self._connections.call(self._base(), "PUBSUB", "NUMSUB", self._channel)
        except Refused as error:
            if "NOPERM" in str(error):  # a user without the right to ask tells nothing
                return False
            raise translated(error, self._where, base=self._prefix) from error
        return bool(listeners)

    async def tell(self, messages: Sequence[bytes]) -> None:
        try:
            for message in messages:
                await self._connections.call(self._base(), "PUBLISH", self._channel, message)
        except (HeadraceError, Refused) as error:
            log.debug("events were lost: %s", error)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[bytes]]:
        postbox = Postbox()
        try:
            connection = await self._connections.single(self._base(), limit=_LIMIT)
        except Refused as error:
            raise translated(error, self._where, base=self._prefix) from error
        watching: asyncio.Task[None] | None = None
        try:
            subscription = _Subscription(connection, self._channel, postbox, self._where)
            await subscription.start()
            watching = asyncio.get_running_loop().create_task(subscription.watch(), name="headrace-events")
            yield aiter(postbox)
        except Refused as error:
            raise translated(error, self._where, base=self._prefix) from error
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await connection.close()


class _Subscription:
    """The channel, on a connection of its own."""

    def __init__(self, connection: Connection, channel: bytes, postbox: Postbox, where: str) -> None:
        self._connection = connection
        self._channel = channel
        self._postbox = postbox
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._started: asyncio.Future[None] = self._loop.create_future()

    async def start(self) -> None:
        self._connection.subscribe(self._heard, [self._channel])
        try:
            async with asyncio.timeout(_ANSWER):
                await self._started
        except TimeoutError:
            raise self._silent() from None

    async def watch(self) -> None:
        """Ask a server that has been silent for long whether it is still there."""
        while True:
            asked = self._loop.time()
            self._connection.send("PING")
            await asyncio.sleep(_QUIET)
            if self._heard_at < asked:
                self._postbox.post(self._silent())
                return

    def _silent(self) -> Unavailable:
        return Unavailable(f"{self._where}: no answer on the connection for events")

    def _heard(self, said: Any) -> None:
        self._heard_at = self._loop.time()
        problem: Exception | None = said if isinstance(said, Refused) else None
        if said is None:
            problem = Unavailable(f"{self._where} cannot serve just now: the connection for events broke")
        if problem is not None:
            if self._started.done():
                self._postbox.post(problem)
            else:
                self._started.set_exception(problem)
        elif said[0] == b"subscribe":
            if not self._started.done():
                self._started.set_result(None)
        elif said[0] == b"message":
            self._postbox.post(said[2])
