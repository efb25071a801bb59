"""Events through a channel. In a cluster, all listeners subscribe at one server; what is told anywhere reaches it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from headrace.backends.postbox import Postbox
from headrace.backends.redis.connections import Connections
from headrace.backends.redis.subscription import subscribed
from headrace.backends.redis.translate import Refused, refusals, translated
from headrace.errors import HeadraceError

log = logging.getLogger("headrace")


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

        def heard(_channel: bytes, message: bytes) -> None:
            postbox.post(message)

        with refusals(self._where, self._prefix):
            async with subscribed(self._connections, self._base(), [self._channel], heard, postbox.post, "events"):
                yield aiter(postbox)
