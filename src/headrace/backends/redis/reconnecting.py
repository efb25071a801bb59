"""A connection that is made when it is needed, and again when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.backends.redis.connection import Connection
from headrace.errors import Unavailable


class Reconnecting:
    """Callers that want the connection while it is being made wait for one attempt and share its failure. A caller that
    stops waiting does not stop the attempt."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Connection]]) -> None:
        self._make = make
        self._attempt: asyncio.Task[Connection] | None = None
        self.connection: Connection | None = None

    async def get(self) -> Connection:
        """The connection; a new one if there is none."""
        connection = self.connection
        if connection is not None and connection.usable:
            return connection
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_task(self._make(), name="headrace-connect")
            self._attempt.add_done_callback(self._made)
        attempt = self._attempt
        await asyncio.wait([attempt])
        if attempt.cancelled():
            raise Unavailable("the connections were closed")
        return attempt.result()

    def _made(self, attempt: asyncio.Task[Connection]) -> None:
        if self._attempt is attempt:
            self._attempt = None
        if not attempt.cancelled() and attempt.exception() is None:
            self.connection = attempt.result()

    async def close(self) -> None:
        """Close the connection."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
        if self.connection is not None:
            await self.connection.close()
