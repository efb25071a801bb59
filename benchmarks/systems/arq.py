"""arq: an asyncio framework that polls, and holds a lock on every job that it runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.systems.fastloop import on_uvloop
from benchmarks.systems.peer import AsyncPeer, Session, payload
from benchmarks.systems.system import Answer
from benchmarks.systems.valkey import ValkeySystem

_SLOTS = 1_000


class Arq(AsyncPeer, ValkeySystem):
    """Its worker with the number of slots that served it best."""

    packages = ("arq", "hiredis", "uvloop")
    distributions = ("arq", "redis", "hiredis", "uvloop")
    roles = AsyncPeer.roles - {"bulk"}
    unfinished = "call('EXISTS', 'arq:queue') > 0"
    gap = 0.6
    most_samples = 40

    def __init__(self, name: str) -> None:
        super().__init__(name, f"at least once, {_SLOTS:,} slots, no results, 500 ms poll (its default), uvloop")

    def run(self, main: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        return on_uvloop(main)

    @asynccontextmanager
    async def session(self, url: str) -> AsyncIterator[Session]:
        import arq
        from arq.connections import RedisSettings

        logging.getLogger("arq").setLevel(logging.WARNING)
        pool = await arq.create_pool(RedisSettings.from_dsn(url))
        try:
            yield _Session(pool)
        finally:
            await pool.aclose()


class _Session(Session):
    def __init__(self, pool: Any) -> None:
        super().__init__()
        self._pool = pool

    async def put(self) -> None:
        await self._pool.enqueue_job("noop", **payload())

    async def stamp(self) -> None:
        await self._pool.enqueue_job("stamp", time.monotonic_ns())

    async def work(self, stop: asyncio.Event) -> None:
        from arq.worker import Worker, func

        functions = [func(self._noop, name="noop"), func(self._stamp, name="stamp")]
        worker = Worker(
            functions, redis_pool=self._pool, max_jobs=_SLOTS, keep_result=0, handle_signals=False, log_results=False
        )
        running = asyncio.ensure_future(worker.main())
        await stop.wait()
        running.cancel()
        await asyncio.wait([running])

    async def _noop(self, ctx: Any, n: int, pad: str) -> None:
        self.ran += 1

    async def _stamp(self, ctx: Any, sent: int) -> None:
        self.latencies.append(time.monotonic_ns() - sent)
