"""Many holders on one PostgreSQL, at the waist: how long each of their single operations takes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from benchmarks.systems.system import job

_PERIOD = 1.0
_LEASE = 30_000_000
WARM_CLAIMS = 10
"""Claims that warm up before any is timed."""
_QUEUE, _EMPTY = "crowd", "empty"

T = TypeVar("T")


class Crowd:
    """So many backends, each with one connection, on one loop."""

    def __init__(self, url: str, workers: int) -> None:
        from headrace.backends.postgres import PostgresBackend

        self._backends = [PostgresBackend(url, size=1, listen=False) for _ in range(workers)]
        self._body = job().encode()
        self.nanoseconds: dict[str, list[int]] = {"enqueue": [], "claim": [], "poll": [], "update": []}

    async def run(self, rounds: int, ready: Callable[[], None]) -> dict[str, list[int]]:
        """All of them at their own times, after one round that warms them up; every latency, by step."""
        async with AsyncExitStack() as stack:
            for backend in self._backends:
                await backend.open()
                stack.push_async_callback(backend.close)
            await asyncio.gather(*(self._round(number) for number in range(len(self._backends))))
            for latencies in self.nanoseconds.values():
                latencies.clear()
            ready()
            await asyncio.gather(*(self._worker(number, rounds) for number in range(len(self._backends))))
        return self.nanoseconds

    async def _worker(self, number: int, rounds: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + random.Random(number).random() * _PERIOD
        for _ in range(rounds):
            await asyncio.sleep(due - loop.time())
            await self._round(number)
            due += _PERIOD

    async def _round(self, number: int) -> None:
        from headrace.seam.records import Claim, Row, Settlement
        from headrace.types import JobState

        backend, holder = self._backends[number], f"holder-{number}"
        row = Row(id=_id(), queue=_QUEUE, task="noop", cells={"parameters": self._body})
        await self._timed("enqueue", backend.insert([row]))
        claimed = await self._timed("claim", backend.claim(Claim(holder, (_QUEUE,), 1, _LEASE)))
        for leased in claimed.jobs:
            done = Settlement(leased.id, leased.epoch, holder, JobState.COMPLETED)
            [state] = await self._timed("update", backend.finish([done]))
            if state is not JobState.COMPLETED:
                raise RuntimeError(f"expected the job to be completed, got {state}")
        await self._timed("poll", backend.claim(Claim(holder, (_EMPTY,), 1, _LEASE)))

    async def _timed(self, step: str, call: Awaitable[T]) -> T:
        start = time.monotonic_ns()
        answer = await call
        self.nanoseconds[step].append(time.monotonic_ns() - start)
        return answer


async def claims(backend: Any, queue: str, count: int, batch: int) -> list[int]:
    """How long each of so many claims takes; what they bring is settled in between, which is not counted."""
    from headrace.seam.records import Claim, Settlement
    from headrace.types import JobState

    found: list[int] = []
    for _ in range(count):
        start = time.monotonic_ns()
        claimed = await backend.claim(Claim("holder", (queue,), batch, _LEASE))
        found.append(time.monotonic_ns() - start)
        if len(claimed.jobs) < batch:
            raise RuntimeError(f"a claim brought {len(claimed.jobs)} of {batch} jobs: the queue is not deep enough")
        ended = [Settlement(leased.id, leased.epoch, "holder", JobState.COMPLETED) for leased in claimed.jobs]
        await backend.finish(ended)
    return found


def _id() -> bytes:
    millis = time.time_ns() // 1_000_000
    return millis.to_bytes(6, "big") + b"\x70" + random.randbytes(1) + b"\x80" + random.randbytes(7)
