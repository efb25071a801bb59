"""Chancy: claims in batches, and acknowledges every now and then."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.systems.peer import AsyncPeer, Session, payload
from benchmarks.systems.postgres import DURABLE, PostgresSystem

_SLOTS = 1_000
_FLUSH = 0.1
_HERE = "benchmarks.systems.chancy"
_sessions: list[_Session] = []
"""The library finds its functions by their import path, so they cannot belong to a session."""


class Chancy(AsyncPeer, PostgresSystem):
    """Its worker with the executor for asyncio, polling again as soon as a job has ended."""

    packages = ("chancy", "psycopg[binary]")
    distributions = ("chancy", "psycopg")
    unfinished = "EXISTS (SELECT 1 FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying'))"
    witness = (
        "SELECT format('EXISTS (SELECT 1 FROM chancy_jobs WHERE id = %L AND state IN (''pending'', ''running''))', id)"
        " FROM chancy_jobs ORDER BY id DESC LIMIT 1"
    )
    gap = 0.05

    def __init__(self, name: str) -> None:
        super().__init__(
            name,
            f"{DURABLE}, {_SLOTS:,} slots, eager polling, LISTEN/NOTIFY, acknowledges every {_FLUSH:g} s (default 1 s)",
        )

    @asynccontextmanager
    async def session(self, url: str) -> AsyncIterator[Session]:
        import chancy

        logging.getLogger("chancy").setLevel(logging.WARNING)
        async with chancy.Chancy(url, log=logging.getLogger("chancy")) as app:
            if not await app.is_up_to_date():
                await app.migrate()
            queue = chancy.Queue(
                name="bench", concurrency=_SLOTS, executor=chancy.Chancy.Executor.Async, eager_polling=True
            )
            await app.declare(queue)
            session = _Session(app)
            _sessions.append(session)
            yield session


class _Session(Session):
    def __init__(self, app: Any) -> None:
        super().__init__()
        self._app = app

    async def put(self) -> None:
        await self._app.push(_job("noop", payload()))

    async def put_many(self, count: int) -> None:
        job = _job("noop", payload())
        async for _ in self._app.push_many([job] * count):
            pass

    async def stamp(self) -> None:
        await self._app.push(_job("stamp", {"sent": time.monotonic_ns()}))

    async def work(self, stop: asyncio.Event) -> None:
        import chancy

        worker = chancy.Worker(self._app, register_signal_handlers=False)
        worker.send_outgoing_interval = _FLUSH
        async with worker:
            await stop.wait()


def _job(function: str, arguments: dict[str, Any]) -> Any:
    import chancy

    return chancy.Job(func=f"{_HERE}.{function}", kwargs=arguments, queue="bench")


async def noop(n: int, pad: str) -> None:
    _sessions[-1].ran += 1


async def stamp(sent: int) -> None:
    _sessions[-1].latencies.append(time.monotonic_ns() - sent)
