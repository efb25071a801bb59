"""A worker under a load that never ends: a backlog is kept up and worked off in one process."""

from __future__ import annotations

import asyncio
import time

from benchmarks.systems.headrace import QUEUE, Bench

_SAMPLE = 0.1
_CHUNK = 1_000


class Steady:
    """``samples`` tells how many jobs had completed at which instant."""

    def __init__(self, bench: Bench, backlog: int) -> None:
        self._bench = bench
        self._backlog = backlog
        self._stored = 0
        self.samples: list[tuple[int, int]] = []

    async def run(self) -> None:
        """Until the app is told to stop."""
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._feed()), group.create_task(self._sample())]
            await self._bench.app.work([QUEUE])
            for helper in helpers:
                helper.cancel()

    async def _feed(self) -> None:
        jobs = min(_CHUNK, self._backlog)
        while True:
            while self._stored - self._completed() < self._backlog:
                await self._bench.fill(jobs)
                self._stored += jobs
            await asyncio.sleep(0.005)

    async def _sample(self) -> None:
        while True:
            self.samples.append((time.monotonic_ns(), self._completed()))
            await asyncio.sleep(_SAMPLE)

    def _completed(self) -> int:
        assert self._bench.probe is not None
        return self._bench.probe.settled
