"""Hints by LISTEN and NOTIFY, sent after the transactions that cause them, many at once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache

from psycopg import Notify, sql

from headrace.backends.postgres.arrays import texts
from headrace.backends.postgres.connections import Connections
from headrace.backends.postgres.crowd import EVERYBODY, Crowd, Ranks, note, quiet
from headrace.backends.postgres.presence import Presence
from headrace.backends.postgres.relay import BELLS, Relay
from headrace.backends.postgres.translate import translated
from headrace.errors import HeadraceError, Unavailable
from headrace.seam.records import Hint, JobId

log = logging.getLogger("headrace")

_AT_ONCE = 1_000
_APART = 0.002
"""Seconds between two statements with hints, so that single enqueues do not cost two statements each."""
NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(c, p) FROM unnest(%b, %b) AS n (c, p)"
"""It does not wait for the disk: a crash that loses a hint also ends the connections of those who listen."""
_LISTENS = (1751474532, 1)
"""While nobody who listens to a queue holds this lock, single jobs are stored without a hint (``insert_one_v1``)."""
_TOKENS = 100
"""Notes that are answered at once, at most: beyond that, to tell others costs more than their looks."""


@lru_cache(65_536)
def channel(schema: str, topic: str) -> str:
    """The channel of a topic: a digest, as topics hold any text. The server makes the same (``channel`` in the
    migrations)."""
    return "headrace_" + hashlib.sha256(f"{schema}\0{topic}".encode()).hexdigest()[:40]


def _job_id(payload: str) -> JobId | None:
    """The job that a hint is about. Any role of the database can send anything on any channel: what is no id still asks
    for a look."""
    try:
        job_id = bytes.fromhex(payload)
    except ValueError:
        return None
    return job_id if len(job_id) == 16 else None


class Notifier:
    """Sends hints: the first at once; those that follow within a moment go together."""

    def __init__(self, connections: Connections, schema: str) -> None:
        self._connections = connections
        self._schema = schema
        self._waiting: dict[tuple[str, str], None] = {}
        self._jobs: Counter[str] = Counter()
        self._sent = random.getrandbits(32)
        self._along = 0.0
        """When the last one was sent along with a job."""
        self._sending: asyncio.Task[None] | None = None

    def send(self, topics: Iterable[tuple[str, JobId | None]]) -> None:
        """Send hints. All listeners of a queue look."""
        for topic, job_id in topics:
            self._waiting[channel(self._schema, topic), EVERYBODY if job_id is None else job_id.hex()] = None
        self._go()

    def count(self, topic: str, jobs: int) -> None:
        """Tell that this many jobs may have become claimable: as many listeners look at once."""
        self._jobs[channel(self._schema, topic)] += jobs
        self._go()

    def along(self, topic: str) -> tuple[bytes, bytes] | None:
        """The channel of a topic, and a note about one job, to be sent along with it; None if the last hint was sent a
        moment ago, or others wait."""
        now = asyncio.get_running_loop().time()
        if self._waiting or self._jobs or now < self._along + _APART:
            return None
        self._along = now
        self._sent += 1
        return channel(self._schema, topic).encode(), note(1, self._sent).encode()

    def hush(self, found: Mapping[str, Iterable[str]], next_in: int | None) -> None:
        """Tell listeners that have not looked yet that nothing is left of what these notes, by topic, were about."""
        for topic, tokens in found.items():
            self._waiting[channel(self._schema, topic), quiet(list(tokens)[:_TOKENS], next_in)] = None
        self._go()

    def _go(self) -> None:
        if (self._waiting or self._jobs) and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="headrace-notify")

    def _gathered(self) -> list[tuple[str, str]]:
        """The channels and payloads that go next."""
        for topic, jobs in self._jobs.items():
            self._sent += 1
            self._waiting[topic, note(jobs, self._sent)] = None
        self._jobs.clear()
        batch = list(self._waiting)[:_AT_ONCE]
        for hint in batch:
            del self._waiting[hint]
        return batch

    async def flush(self) -> None:
        """Return when this loop has sent everything."""
        if self._sending is not None and self._sending.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        while self._waiting or self._jobs:
            channels, payloads = [list(part) for part in zip(*self._gathered(), strict=True)]
            try:
                await self._connections.rows(NOTIFY, (texts(channels), texts(payloads)))
            except HeadraceError as error:
                log.debug("hints were lost: %s", error)
            await asyncio.sleep(_APART)


class Listener:
    """Receives hints, on one connection per ``listen``."""

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
        if queues:
            names[channel(self._schema, BELLS)] = BELLS
        relay = Relay(self._connections, self._schema)
        connection = await self._connections.single()
        tasks: list[asyncio.Task[None]] = []
        try:
            listens = [sql.SQL("LISTEN {}").format(sql.Identifier(name)) for name in names]
            await connection.execute(sql.SQL(";").join(listens))
            presence = Presence(connection, *(_LISTENS if queues else ()))
            await presence.show()
            hints: asyncio.Queue[Hint | Exception] = asyncio.Queue()
            hearing = self._hear(presence, names, relay, hints)
            tasks.append(asyncio.get_running_loop().create_task(hearing, name="headrace-hear"))
            if holder is not None and queues:
                keeping_up = self._crowd.keep_up(holder, queues, self._ranks)
                tasks.append(asyncio.get_running_loop().create_task(keeping_up, name="headrace-crowd"))
            yield each(hints)
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
        self, presence: Presence, names: dict[str, str], relay: Relay, hints: asyncio.Queue[Hint | Exception]
    ) -> None:
        """Pass on what comes, until the connection fails."""

        def look(topic: str) -> None:
            hints.put_nowait(Hint(topic, None))

        def pass_on(heard: Notify) -> None:
            topic = names.get(heard.channel)
            if topic == BELLS:
                relay.hear(heard.payload)
            elif topic is not None and topic.startswith("queue:"):
                self._crowd.hear(topic, heard.payload, look)
            elif topic is not None:
                hints.put_nowait(Hint(topic, _job_id(heard.payload)))

        hints.put_nowait(await presence.hear(self._connections.where, "hints", pass_on))


async def each(hints: asyncio.Queue[Hint | Exception]) -> AsyncIterator[Hint]:
    """What comes, until the connection fails."""
    while True:
        hint = await hints.get()
        if isinstance(hint, Exception):
            raise hint
        yield hint
