"""Awa: a core in Rust that calls handlers in Python."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.systems.peer import AsyncPeer, Session, payload
from benchmarks.systems.postgres import DURABLE, PostgresSystem

_SLOTS = 500


@dataclass
class Noop:
    n: int
    pad: str


@dataclass
class Stamp:
    sent: int


class Awa(AsyncPeer, PostgresSystem):
    """Its worker with the number of slots that served it best."""

    packages = ("awa-pg", "psycopg[binary]")
    distributions = ("awa-pg",)
    unfinished = "EXISTS (SELECT 1 FROM awa.jobs WHERE state IN ('available', 'running', 'scheduled', 'retryable'))"
    gap = 0.3
    most_samples = 60

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{DURABLE}, {_SLOTS} slots, COPY for many, 200 ms poll (its default)")

    def condition(self, connection: Any) -> str:
        """Its view of all jobs takes a second to read; its receipts of completed batches only a moment."""
        [[stored]] = connection.execute("SELECT count(*) FROM awa.jobs").fetchall()
        return f"coalesce((SELECT sum(completed_count) FROM awa.receipt_completion_batches), 0) < {stored}"

    @asynccontextmanager
    async def session(self, url: str) -> AsyncIterator[Session]:
        import awa

        client = awa.AsyncClient(url)
        await client.migrate()
        await client.install_queue_storage()
        try:
            yield _Session(client)
        finally:
            await client.close()


class _Session(Session):
    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client = client
        client.task(Noop, queue="bench")(self._noop)
        client.task(Stamp, queue="bench")(self._stamp)

    async def put(self) -> None:
        await self._client.insert(Noop(**payload()), queue="bench")

    async def put_many(self, count: int) -> None:
        await self._client.enqueue_many_copy([Noop(**payload())] * count, queue="bench")

    async def stamp(self) -> None:
        await self._client.insert(Stamp(time.monotonic_ns()), queue="bench")

    async def work(self, stop: asyncio.Event) -> None:
        await self._client.start([("bench", _SLOTS)])
        await stop.wait()
        await self._client.shutdown()

    async def _noop(self, job: Any) -> None:
        self.ran += 1

    async def _stamp(self, job: Any) -> None:
        self.latencies.append(time.monotonic_ns() - job.args.sent)
