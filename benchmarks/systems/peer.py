"""A library on a server with a worker for asyncio: it says how a job is put and worked, the roles are here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any

from benchmarks.gate import Gate
from benchmarks.payload import SMALL, pad
from benchmarks.systems.served import ServedSystem
from benchmarks.systems.system import WARM, Answer


class Session:
    """A library at work on one database."""

    def __init__(self) -> None:
        self.ran = 0
        """No-op jobs that have run here."""
        self.latencies: list[int] = []

    async def put(self) -> None:
        """Store one no-op job."""
        raise NotImplementedError

    async def put_many(self, count: int) -> None:
        """Store many, in the way that the library has for it; one by one where it has none."""
        for _ in range(count):
            await self.put()

    async def stamp(self) -> None:
        """Store a job that says when it was sent."""
        raise NotImplementedError

    async def work(self, stop: asyncio.Event) -> None:
        """Be a worker until told to stop."""
        raise NotImplementedError


class AsyncPeer(ServedSystem):
    """A library with a worker for asyncio."""

    roles = frozenset({"enqueue", "bulk", "fill", "work", "watch", "produce"})

    def session(self, url: str) -> AbstractAsyncContextManager[Session]:
        """The library, connected; it has made its tables where there were none."""
        raise NotImplementedError

    def run(self, main: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """On the loop that serves the library best."""
        return asyncio.run(main())

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """One by one, each stored before the next."""

        async def main() -> Answer:
            async with self.session(self.url(place)) as session:
                for _ in range(WARM):
                    await session.put()
                gate.ready()
                start = time.perf_counter()
                for _ in range(count):
                    await session.put()
                return {"seconds": time.perf_counter() - start, **gate.used()}

        return self.run(main)

    def bulk(self, gate: Gate, place: str, count: int) -> Answer:
        """Many in one call."""

        async def main() -> Answer:
            async with self.session(self.url(place)) as session:
                await session.put_many(WARM)
                gate.ready()
                start = time.perf_counter()
                await session.put_many(count)
                return {"seconds": time.perf_counter() - start, **gate.used()}

        return self.run(main)

    def fill(self, gate: Gate, place: str, count: int) -> Answer:
        """As many waiting jobs as asked for."""

        async def main() -> Answer:
            async with self.session(self.url(place)) as session:
                gate.ready()
                for first in range(0, count, 1_000):
                    await session.put_many(min(1_000, count - first))
                return {}

        answer = self.run(main)
        self.settle(place)
        return answer

    def work(self, gate: Gate, place: str) -> Answer:
        """Its worker, until told to stop; the latencies of jobs that say when they were sent."""

        async def main() -> Answer:
            await self._warm_up(place)
            async with self.session(self.url(place)) as session:
                gate.ready()
                loop, stop = asyncio.get_running_loop(), asyncio.Event()
                gate.on_stop(lambda: loop.call_soon_threadsafe(stop.set))
                await session.work(stop)
                return {"latencies": session.latencies, **gate.used()}

        return self.run(main)

    async def _warm_up(self, place: str) -> None:
        async with self.session(self.url(place, "warm")) as session:
            await session.put_many(WARM)
            stop = asyncio.Event()

            async def all_ran() -> None:
                while session.ran < WARM:
                    await asyncio.sleep(0.01)
                stop.set()

            await asyncio.gather(session.work(stop), all_ran())

    def produce(self, gate: Gate, place: str, count: int, gap: float) -> Answer:
        """Send single jobs to an idle worker, and wait until the server has none left."""

        async def main() -> Answer:
            async with self.session(self.url(place)) as session:
                gate.ready()
                for _ in range(count):
                    await asyncio.sleep(gap)
                    await session.stamp()
                with self.connect(place) as connection:
                    while self.left(connection):
                        await asyncio.sleep(gap)
                return {}

        return self.run(main)


@cache
def payload() -> dict[str, Any]:
    """The arguments of a no-op job."""
    return {"n": 1, "pad": pad(SMALL)}
