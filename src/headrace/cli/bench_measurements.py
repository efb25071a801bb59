"""What ``headrace bench`` measures, one function for each figure."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from statistics import median

from headrace import App
from headrace.cli.bench_tasks import add_tasks
from headrace.cli.problems import FAILED, Problem
from headrace.core.walks import walk
from headrace.errors import ConfigError
from headrace.seam.records import Delete, Record, Selector, SweepClause, SweepTarget
from headrace.types import JobState

CALLERS = 200
_EACH = 10
_SINGLE = 200
_TRIPS = 50


@dataclass
class Bench:
    """Measurements on one store, on queues of its own."""

    app: App
    url: str
    queue: str
    jobs: int

    def __post_init__(self) -> None:
        self._nothing, self._clock = add_tasks(self.app)

    async def sequential(self) -> float:
        """Jobs per second, one enqueue after another."""
        task = self._nothing.options(queue=self.queue)
        began = time.perf_counter()
        for _ in range(_SINGLE):
            await task.enqueue()
        return _SINGLE / (time.perf_counter() - began)

    async def concurrent(self) -> float:
        """Jobs per second, by many callers at once."""
        task = self._nothing.options(queue=self.queue)

        async def caller() -> None:
            for _ in range(_EACH):
                await task.enqueue()

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(caller())
        return CALLERS * _EACH / (time.perf_counter() - began)

    async def bulk(self) -> float:
        """Jobs per second, all in one call."""
        task = self._nothing.options(queue=self.queue)
        began = time.perf_counter()
        await self.app.enqueue_many(task.job() for _ in range(self.jobs))
        return self.jobs / (time.perf_counter() - began)

    async def drain(self) -> float:
        """Jobs per second through one worker process, from the first completion to the last by the store's clock.
        Drains what ``bulk`` enqueued."""
        async with self._worker(self.queue, "--burst") as worker:
            if await worker.wait():
                raise Problem(FAILED, f"the worker ended with exit code {worker.returncode}")
        ends = sorted([job.finished_at async for job in self._ended() if job.finished_at is not None])
        if len(ends) < self.jobs:
            raise Problem(FAILED, f"only {len(ends)} of {self.jobs} jobs are done")
        return (len(ends) - 1) * 1e6 / max(1, ends[-1] - ends[0])

    async def trips(self) -> tuple[float, float]:
        """Milliseconds from enqueue to start, and from call to result, with an idle worker."""
        queue = f"{self.queue}-trips"
        task = self._clock.options(queue=queue)
        async with self._worker(queue):
            await task.options(wait="60s").call()
            starts, answers = [], []
            for _ in range(_TRIPS):
                began = time.monotonic_ns()
                started = await task.call()
                answers.append((time.monotonic_ns() - began) / 1e6)
                starts.append((started - began) / 1e6)
        return median(starts), median(answers)

    async def clear(self) -> None:
        """Delete all jobs and queues of this benchmark."""
        for queue in (self.queue, f"{self.queue}-trips"):
            await self.app.client.alter_all(Selector(queue=queue), Delete())
        with suppress(ConfigError):
            # Without a bound, this sweep removes only the names of empty queues.
            await (await self.app.client.backend()).sweep(SweepClause(target=SweepTarget.COMPLETED))

    async def _ended(self) -> AsyncIterator[Record]:
        completed = Selector(queue=self.queue, states=frozenset({JobState.COMPLETED}))
        async for records in walk(await self.app.client.backend(), completed, page=1_000):
            for record in records:
                yield record

    @asynccontextmanager
    async def _worker(self, queue: str, *options: str) -> AsyncIterator[Process]:
        command = [sys.executable, "-m", "headrace.cli", "worker", "headrace.cli.bench_worker", "--queue", queue]
        worker = await asyncio.create_subprocess_exec(
            *command, "--tethered", "--log-level", "error", *options,
            stdin=PIPE, stdout=DEVNULL, start_new_session=True, env=os.environ | {"HEADRACE_URL": self.url},
        )  # fmt: skip
        try:
            yield worker
        finally:
            if worker.returncode is None:
                worker.terminate()
                await worker.wait()
