"""Events by LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection, sql

from headrace.backends.postbox import Postbox
from headrace.backends.postgres.arrays import texts
from headrace.backends.postgres.connections import Connections
from headrace.backends.postgres.hints import channel
from headrace.backends.postgres.presence import Presence
from headrace.backends.postgres.translate import translated
from headrace.errors import HeadraceError, Unavailable

log = logging.getLogger("headrace")

_TOPIC = "events:all"
_TELL = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(c, p) FROM unnest(%b, %b) AS n (c, p)"
_HEARD = "SELECT NOT pg_try_advisory_xact_lock(%b)"
"""True if a listener shows itself, or a stranger has the lock; in passing, also if another process asks at the same
moment."""


class PostgresEvents:
    """See :class:`headrace.seam.events.Events`."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._channel = channel(schema, _TOPIC)
        digest = hashlib.sha256(self._channel.encode()).digest()
        self._lock = int.from_bytes(digest[:8], signed=True)

    async def heard(self) -> bool:
        [[heard]] = await self._connections.rows(_HEARD, (self._lock,))
        return bool(heard)

    async def tell(self, messages: Sequence[bytes]) -> None:
        if not messages:
            return
        payloads = [b64encode(message).decode() for message in messages]
        try:
            await self._connections.rows(_TELL, (texts([self._channel] * len(payloads)), texts(payloads)))
        except HeadraceError as error:
            log.debug("events were lost: %s", error)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[bytes]]:
        postbox = Postbox()
        connection = await self._connections.single()
        hearing: asyncio.Task[None] | None = None
        try:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            presence = Presence(connection, self._lock)
            await presence.show()
            hearing = asyncio.get_running_loop().create_task(
                self._hear(connection, presence, postbox), name="headrace-events"
            )
            yield aiter(postbox)
        except Unavailable:
            raise
        except Exception as error:
            raise translated(error, self._connections.where) from error
        finally:
            if hearing is not None:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
            await connection.close()

    async def _hear(self, connection: AsyncConnection[Any], presence: Presence, postbox: Postbox) -> None:
        """Pass on what comes, until the connection fails."""
        try:
            while True:
                async for heard in connection.notifies(timeout=presence.pause):
                    try:
                        postbox.post(b64decode(heard.payload, validate=True))
                    except (binascii.Error, ValueError):  # any role of the database can send anything
                        continue
                await presence.check()
        except Exception as error:
            where = self._connections.where
            silent = Unavailable(f"{where}: no answer on the connection for events")
            failed = silent if isinstance(error, TimeoutError) else translated(error, where)
            failed.__cause__ = error
            postbox.post(failed)
