"""Procrastinate: a full framework that claims and acknowledges one job at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.systems.peer import AsyncPeer, Session, payload
from benchmarks.systems.postgres import DURABLE, PostgresSystem

_SLOTS = 100


class Procrastinate(AsyncPeer, PostgresSystem):
    """Its asyncio worker over psycopg, with the number of slots that served it best."""

    packages = ("procrastinate", "psycopg[binary]")
    distributions = ("procrastinate", "psycopg")
    unfinished = (
        "EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status = 'todo')"
        " OR EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status = 'doing')"
    )

    witness = (
        "SELECT format('EXISTS (SELECT 1 FROM procrastinate_jobs WHERE id = %s AND status IN (''todo'', ''doing''))',"
        " max(id)) FROM procrastinate_jobs"
    )
    most_drained = 3_000

    def __init__(self, name: str) -> None:
        super().__init__(
            name,
            f"{DURABLE}, {_SLOTS} slots, LISTEN/NOTIFY, done jobs are kept (its default); drains"
            f" {self.most_drained:,} jobs at most, as each takes long",
        )

    @asynccontextmanager
    async def session(self, url: str) -> AsyncIterator[Session]:
        import procrastinate

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
        async with app.open_async():
            if not await app.check_connection_async():
                await app.schema_manager.apply_schema_async()
            yield _Session(app)


class _Session(Session):
    def __init__(self, app: Any) -> None:
        super().__init__()
        self._app = app
        self._noop = app.task(name="noop", queue="bench")(self._run_noop)
        self._stamp = app.task(name="stamp", queue="bench")(self._run_stamp)

    async def put(self) -> None:
        await self._noop.defer_async(**payload())

    async def put_many(self, count: int) -> None:
        arguments = payload()
        await self._noop.batch_defer_async(*[arguments] * count)

    async def stamp(self) -> None:
        await self._stamp.defer_async(sent=time.monotonic_ns())

    async def work(self, stop: asyncio.Event) -> None:
        worker = asyncio.ensure_future(
            self._app.run_worker_async(queues=["bench"], concurrency=_SLOTS, install_signal_handlers=False)
        )
        await stop.wait()
        worker.cancel()
        await asyncio.wait([worker])

    async def _run_noop(self, n: int, pad: str) -> None:
        self.ran += 1

    async def _run_stamp(self, sent: int) -> None:
        self.latencies.append(time.monotonic_ns() - sent)
