"""What a store holds while it moves, and who goes on using it: jobs of every kind, producers, workers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from headrace.api.connection import open_backend
from headrace.core.clock import SystemClock
from headrace.core.ids import IdMaker, seeded_by_system
from headrace.errors import Unavailable
from headrace.seam import records as r
from headrace.seam import ticks as t
from headrace.seam.protocol import Backend
from headrace.types import JobState

T = TypeVar("T")

SCHEDULES = 20
_BATCH = 500
_HOUR = 3_600_000_000
_LATER = 24 * _HOUR
_LEASE = 30_000_000
_PATIENCE = 120.0
"""Seconds in which what was enqueued must have run, once nothing new comes."""
_BUSY, _DELAYED, _KEYED, _GROUPED, _DEAD = "busy", "delayed", "keyed", "grouped", "dead"
_KINDS = {_DELAYED: 0.6, _KEYED: 0.15, _GROUPED: 0.15, _DEAD: 0.1}
"""Of all jobs that wait, or have ended, how many are of which kind. Each kind has a queue."""


class Held(Struct, frozen=True):
    """What a store holds of each kind, and how many keys are taken."""

    waiting: dict[str, int]
    dead: int
    schedules: int
    keys_taken: int


class Load:
    """Producers and workers, and what they did. They may change to another store while they run."""

    def __init__(self) -> None:
        self._new_id = IdMaker(SystemClock(), seeded_by_system()).new
        self.enqueued: set[bytes] = set()
        self.runs: Counter[bytes] = Counter()
        self.refused = 0
        """Jobs that no store took."""
        self._latencies: list[float] = []
        self._url = ""
        self._producing = self._working = True
        self._tasks: list[asyncio.Task[None]] = []

    def row(self, queue: str, number: int = 0) -> r.Row:
        """A job; all but those of producers are due tomorrow."""
        return r.Row(
            id=self._new_id(),
            queue=queue,
            task="t",
            cells={"parameters": b"x" * 200},
            delay=0 if queue in (_BUSY, _DEAD) else _LATER,
            key=f"k{number}" if queue == _KEYED else None,
            group=f"g{number % 50}" if queue == _GROUPED else None,
        )

    async def fill(self, store: Backend, jobs: int) -> None:
        """Jobs of every kind, and schedules."""
        for queue, share in _KINDS.items():
            for first in range(0, int(jobs * share), _BATCH):
                rows = [self.row(queue, n) for n in range(first, min(first + _BATCH, int(jobs * share)))]
                await store.insert(rows)
                if queue == _DEAD:
                    await self._bury(store, len(rows))
        assert store.ticks is not None
        now = await store.now()
        schedules = [
            t.Schedule(name=f"s{n}", uid=self._new_id(), queue=_DELAYED, definition=b"d", slot=now + _LATER,
                       look_at=now + _LATER)
            for n in range(SCHEDULES)
        ]  # fmt: skip
        assert all(await store.ticks.save([t.Save(schedule, 0) for schedule in schedules]))

    async def _bury(self, store: Backend, count: int) -> None:
        jobs = (await store.claim(r.Claim("undertaker", (_DEAD,), count, _LEASE, max_bytes=1 << 30))).jobs
        failed = [r.Settlement(job.id, job.epoch, "undertaker", JobState.FAILED, reason="f") for job in jobs]
        assert None not in await store.finish(failed)

    async def held(self, store: Backend, jobs: int) -> Held:
        """What is there of all that; a sample of keys is tried."""
        assert store.ticks is not None
        stats = await store.stats()
        numbers = range(0, int(jobs * _KINDS[_KEYED]), max(1, int(jobs * _KINDS[_KEYED]) // 100))
        answers = await store.insert([self.row(_KEYED, n) for n in numbers])
        return Held(
            {one.queue: one.available for one in stats.queues if one.queue in _KINDS and one.available},
            sum(one.failed for one in stats.queues),
            len(await store.ticks.find(t.ScheduleSelector(), limit=1_000)),
            sum(answer.status is r.InsertStatus.DUPLICATE for answer in answers),
        )

    # -- producers and workers

    def start(self, url: str) -> None:
        """Begin."""
        self._url = url
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._produce(n)) for n in range(2)]
        self._tasks += [loop.create_task(self._work(f"w{n}")) for n in range(2)]

    def go_to(self, url: str) -> None:
        """Everybody gets another URL, one after the other, as in a deployment."""
        self._url = url

    async def stop(self) -> None:
        """Producers first, workers when everything is done."""
        self._producing = False
        await asyncio.gather(*self._tasks[:2])
        deadline = time.monotonic() + _PATIENCE
        while self.enqueued - self.runs.keys() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        self._working = False
        await asyncio.gather(*self._tasks)

    def failed(self) -> None:
        """Raise what ended one of them."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _store(self, store: Backend | None, url: str) -> tuple[Backend, str]:
        """The store of the present URL."""
        if store is not None and url == self._url:
            return store, url
        if store is not None:
            await store.close()
        url = self._url
        opened = open_backend(url)
        await opened.open()
        return opened, url

    async def _produce(self, number: int) -> None:
        store, url = await self._store(None, "")
        while self._producing:
            store, url = await self._store(store, url)
            rows = [self.row(_BUSY)]
            began = time.perf_counter()
            [answer] = await _patiently(lambda store=store, rows=rows: store.insert(rows))  # type: ignore[misc]
            self._latencies.append(time.perf_counter() - began)
            if answer.status in (r.InsertStatus.NEW, r.InsertStatus.SAME):
                self.enqueued.add(answer.id)
            else:
                self.refused += 1
            await asyncio.sleep(0.005)
        await store.close()

    async def _work(self, holder: str) -> None:
        store, url = await self._store(None, "")
        while self._working:
            store, url = await self._store(store, url)
            req = r.Claim(holder, (_BUSY,), 20, _LEASE)
            jobs = (await _patiently(lambda store=store, req=req: store.claim(req))).jobs  # type: ignore[misc]
            self.runs.update(job.id for job in jobs)
            done = [r.Settlement(job.id, job.epoch, holder, JobState.COMPLETED) for job in jobs]
            await _patiently(lambda store=store, done=done: store.finish(done))  # type: ignore[misc]
            await _patiently(lambda store=store: store.reap(r.Reap(max_lost=100)))  # type: ignore[misc]
            await asyncio.sleep(0.01)
        await store.close()

    def felt(self) -> dict[str, float]:
        """What producers felt since the last look, in milliseconds."""
        some, self._latencies = sorted(self._latencies), []
        if not some:
            return {"p50": 0.0, "p99": 0.0, "calls": 0}
        return {
            "p50": round(1e3 * statistics.median(some), 2),
            "p99": round(1e3 * some[int(0.99 * (len(some) - 1))], 2),
            "calls": len(some),
        }


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.05)
