"""Wake-ups by LISTEN and NOTIFY: outside of the transactions that cause them, and many at once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

from psycopg import AsyncConnection, sql

from headrace.backends.postgres.arrays import texts
from headrace.backends.postgres.connections import Connections
from headrace.backends.postgres.relay import BELLS, Relay
from headrace.backends.postgres.translate import translated
from headrace.errors import HeadraceError, Unavailable
from headrace.records import Hint, JobId

log = logging.getLogger("headrace")

_AT_ONCE = 1_000
_APART = 0.002
"""Seconds between two statements with hints, so that a stream of single enqueues does not cost twice as many."""
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(c, p) FROM unnest(%b, %b) AS n (c, p)"
"""Nobody waits for the disk: a crash that undoes a hint ends those who would have heard it too."""
_QUIET = 10.0
"""Seconds without a hint after which the server is asked whether it is still there."""
_ANSWER = 5.0
"""Seconds that it has to say so."""


@lru_cache(65_536)
def channel(schema: str, topic: str) -> str:
    """The channel of a topic. Topics hold any text, so it is made from a digest of it: one that the server can make too
    (``channel`` in the migrations)."""
    return "headrace_" + hashlib.sha256(f"{schema}\0{topic}".encode()).hexdigest()[:40]


def _job_id(payload: str) -> JobId | None:
    """The job that a hint is about. Every role of the database can send anything on any channel: what is no id says
    nothing, and asks for a look all the same."""
    try:
        job_id = bytes.fromhex(payload)
    except ValueError:
        return None
    return job_id if len(job_id) == 16 else None


class Notifier:
    """Sends hints after the fact: the first at once; those that come within a moment pile up and go together."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._schema = schema
        self._waiting: dict[tuple[str, str], None] = {}
        self._sending: asyncio.Task[None] | None = None

    def send(self, topics: Iterable[tuple[str, JobId | None]]) -> None:
        """Put hints on their way."""
        for topic, job_id in topics:
            self._waiting[channel(self._schema, topic), "" if job_id is None else job_id.hex()] = None
        if self._waiting and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="headrace-notify")

    async def flush(self) -> None:
        """Return when all is sent that this loop has to send."""
        if self._sending is not None and self._sending.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        while self._waiting:
            batch = list(self._waiting)[:_AT_ONCE]
            for hint in batch:
                del self._waiting[hint]
            channels, payloads = [list(part) for part in zip(*batch, strict=True)]
            try:
                await self._connections.rows(_NOTIFY, (texts(channels), texts(payloads)))
            except HeadraceError as error:
                log.debug("hints were lost: %s", error)
            await asyncio.sleep(_APART)


class Listener:
    """Hears hints on a connection of its own, one per ``listen``."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._schema = schema

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[Hint]]:
        names = {channel(self._schema, topic): topic for topic in topics}
        if any(topic.startswith("queue:") for topic in topics):
            names[channel(self._schema, BELLS)] = BELLS
        relay = Relay(self._connections, self._schema)
        connection = await self._connections.single()
        try:
            await connection.execute(
                sql.SQL(";").join([sql.SQL("LISTEN {}").format(sql.Identifier(name)) for name in names])
            )
            yield self._hear(connection, names, relay)
        except Unavailable:
            raise
        except Exception as error:
            raise translated(error, self._connections.where) from error
        finally:
            await relay.close()
            await connection.close()

    async def _hear(
        self, connection: AsyncConnection[Any], names: dict[str, str], relay: Relay
    ) -> AsyncIterator[Hint]:  # fmt: skip
        try:
            while True:
                async for note in connection.notifies(timeout=_QUIET):
                    topic = names.get(note.channel)
                    if topic == BELLS:
                        relay.wake()
                    elif topic is not None:
                        yield Hint(topic, _job_id(note.payload))
                async with asyncio.timeout(_ANSWER):
                    await connection.execute("SELECT")
        except TimeoutError as error:
            raise Unavailable(f"{self._connections.where}: no answer on the connection for hints") from error
        except Exception as error:
            raise translated(error, self._connections.where) from error
