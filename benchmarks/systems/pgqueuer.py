"""PgQueuer: the one peer that batches both claims and acknowledgements."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.systems.peer import AsyncPeer, Session, payload
from benchmarks.systems.postgres import DURABLE, PostgresSystem
from benchmarks.systems.system import Answer

_BATCH = 1_000


class PgQueuer(AsyncPeer, PostgresSystem):
    """Its queue manager over asyncpg and uvloop, as its own command runs it."""

    packages = ("pgqueuer", "asyncpg", "psycopg[binary]")
    distributions = ("pgqueuer", "asyncpg", "uvloop")
    unfinished = "EXISTS (SELECT 1 FROM pgqueuer)"
    witness = "SELECT format('EXISTS (SELECT 1 FROM pgqueuer WHERE id = %s)', max(id)) FROM pgqueuer"

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{DURABLE}, logged tables (its default), batches of {_BATCH:,}, uvloop, LISTEN/NOTIFY")

    def run(self, main: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        import uvloop

        answer: Answer = uvloop.run(main())
        return answer

    @asynccontextmanager
    async def session(self, url: str) -> AsyncIterator[Session]:
        import asyncpg

        connection = await asyncpg.connect(url)
        try:
            session = _Session(connection)
            await session.install()
            yield session
        finally:
            await connection.close()


class _Session(Session):
    def __init__(self, connection: Any) -> None:
        from pgqueuer import PgQueuer, Queries

        super().__init__()
        self._app = PgQueuer.from_asyncpg_connection(connection)
        self._queries = Queries.from_asyncpg_connection(connection)
        self._app.entrypoint("noop")(self._noop)
        self._app.entrypoint("stamp")(self._stamp)

    async def install(self) -> None:
        if not await self._queries.schema_is_installed():
            await self._queries.install()

    async def put(self) -> None:
        await self._queries.enqueue("noop", json.dumps(payload()).encode())

    async def put_many(self, count: int) -> None:
        text = json.dumps(payload()).encode()
        for first in range(0, count, _BATCH):
            number = min(_BATCH, count - first)
            await self._queries.enqueue(["noop"] * number, [text] * number, [0] * number)

    async def stamp(self) -> None:
        await self._queries.enqueue("stamp", str(time.monotonic_ns()).encode())

    async def work(self, stop: asyncio.Event) -> None:
        self._app.shutdown = self._app.qm.shutdown = stop
        await self._app.qm.run(batch_size=_BATCH)

    async def _noop(self, job: Any) -> None:
        json.loads(job.payload)
        self.ran += 1

    async def _stamp(self, job: Any) -> None:
        self.latencies.append(time.monotonic_ns() - int(job.payload))
