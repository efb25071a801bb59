"""Wake-ups by LISTEN and NOTIFY: outside of the transactions that cause them, and many at once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

from psycopg import AsyncConnection, sql

from headrace.backends.postgres.arrays import texts
from headrace.backends.postgres.connections import Connections
from headrace.backends.postgres.crowd import EVERYBODY, Crowd, Ranks, note, quiet
from headrace.backends.postgres.relay import BELLS, Relay
from headrace.backends.postgres.translate import translated
from headrace.errors import HeadraceError, Unavailable
from headrace.seam.records import Hint, JobId

log = logging.getLogger("headrace")

_AT_ONCE = 1_000
_APART = 0.002
"""Seconds between two statements with hints, so that a stream of single enqueues does not cost twice as many."""
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(c, p) FROM unnest(%b, %b) AS n (c, p)"
"""Nobody waits for the disk: a crash that undoes a hint ends those who would have heard it too."""
_TOKENS = 100
"""Notes that are answered at once, at most: the others' looks cost less than telling them."""
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
        self._jobs: Counter[str] = Counter()
        self._sent = random.getrandbits(32)
        self._sending: asyncio.Task[None] | None = None

    def send(self, topics: Iterable[tuple[str, JobId | None]]) -> None:
        """Put hints on their way; those who listen to a queue all look."""
        for topic, job_id in topics:
            self._waiting[channel(self._schema, topic), EVERYBODY if job_id is None else job_id.hex()] = None
        self._go()

    def count(self, topic: str, jobs: int) -> None:
        """Tell that so many jobs may have become claimable: as many of those who listen look at once."""
        self._jobs[channel(self._schema, topic)] += jobs
        self._go()

    def hush(self, found: Mapping[str, Iterable[str]], next_in: int | None) -> None:
        """Tell those who are still to look that nothing is left of what these notes, by topic, were about."""
        for topic, tokens in found.items():
            self._waiting[channel(self._schema, topic), quiet(list(tokens)[:_TOKENS], next_in)] = None
        self._go()

    def _go(self) -> None:
        if (self._waiting or self._jobs) and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="headrace-notify")

    async def flush(self) -> None:
        """Return when all is sent that this loop has to send."""
        if self._sending is not None and self._sending.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        while self._waiting or self._jobs:
            for topic, jobs in self._jobs.items():
                self._sent += 1
                self._waiting[topic, note(jobs, self._sent)] = None
            self._jobs.clear()
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

    def __init__(self, connections: Connections, schema: str, crowd: Crowd, ranks: Ranks) -> None:
        self._connections = connections
        self._schema = schema
        self._crowd = crowd
        self._ranks = ranks

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[Hint]]:
        names = {channel(self._schema, topic): topic for topic in topics}
        queues = [topic.removeprefix("queue:") for topic in topics if topic.startswith("queue:")]
        holder = next((topic.removeprefix("holder:") for topic in topics if topic.startswith("holder:")), None)
        if any(topic.startswith("queue:") for topic in topics):
            names[channel(self._schema, BELLS)] = BELLS
        relay = Relay(self._connections, self._schema)
        connection = await self._connections.single()
        tasks: list[asyncio.Task[None]] = []
        try:
            listens = [sql.SQL("LISTEN {}").format(sql.Identifier(name)) for name in names]
            await connection.execute(sql.SQL(";").join(listens))
            hints: asyncio.Queue[Hint | Exception] = asyncio.Queue()
            tasks.append(
                asyncio.get_running_loop().create_task(
                    self._hear(connection, names, relay, hints), name="headrace-hear"
                )
            )
            if holder is not None and queues:
                keeping_up = self._crowd.keep_up(holder, queues, self._ranks)
                tasks.append(asyncio.get_running_loop().create_task(keeping_up, name="headrace-crowd"))
            yield _each(hints)
        except Unavailable:
            raise
        except Exception as error:
            raise translated(error, self._connections.where) from error
        finally:
            self._crowd.leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await relay.close()
            await connection.close()

    async def _hear(
        self,
        connection: AsyncConnection[Any],
        names: dict[str, str],
        relay: Relay,
        hints: asyncio.Queue[Hint | Exception],
    ) -> None:
        """Pass on what comes, until the connection fails."""

        def look(topic: str) -> None:
            hints.put_nowait(Hint(topic, None))

        try:
            while True:
                async for heard in connection.notifies(timeout=_QUIET):
                    topic = names.get(heard.channel)
                    if topic is None:
                        continue
                    if topic == BELLS:
                        relay.hear(heard.payload)
                    elif topic.startswith("queue:"):
                        self._crowd.hear(topic, heard.payload, look)
                    else:
                        hints.put_nowait(Hint(topic, _job_id(heard.payload)))
                async with asyncio.timeout(_ANSWER):
                    await connection.execute("SELECT")
        except TimeoutError as error:
            gone = Unavailable(f"{self._connections.where}: no answer on the connection for hints")
            gone.__cause__ = error
            hints.put_nowait(gone)
        except Exception as error:
            failed = translated(error, self._connections.where)
            failed.__cause__ = error
            hints.put_nowait(failed)


async def _each(hints: asyncio.Queue[Hint | Exception]) -> AsyncIterator[Hint]:
    while True:
        hint = await hints.get()
        if isinstance(hint, Exception):
            raise hint
        yield hint
