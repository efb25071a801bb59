"""Events by LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from psycopg import Notify, sql

from headrace.backends.postbox import Postbox
from headrace.backends.postgres.arrays import texts
from headrace.backends.postgres.connections import Connections
from headrace.backends.postgres.hints import NOTIFY, channel
from headrace.backends.postgres.presence import Presence
from headrace.backends.postgres.translate import translated
from headrace.errors import HeadraceError, Unavailable

log = logging.getLogger("headrace")

_TOPIC = "events:all"
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
            await self._connections.rows(NOTIFY, (texts([self._channel] * len(payloads)), texts(payloads)))
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
            hearing = asyncio.get_running_loop().create_task(self._hear(presence, postbox), name="headrace-events")
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

    async def _hear(self, presence: Presence, postbox: Postbox) -> None:
        """Pass on what comes, until the connection fails."""

        def pass_on(heard: Notify) -> None:
            with suppress(ValueError):  # any role of the database can send anything
                postbox.post(b64decode(heard.payload, validate=True))

        postbox.post(await presence.hear(self._connections.where, "events", pass_on))
