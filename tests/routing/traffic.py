"""Producers and workers that never stop, on a store that moves; and a book of what they did."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

from headrace.errors import Unavailable
from headrace.routing.moving import Moving
from headrace.seam import records as r
from headrace.types import JobState

QUEUES = ("plain", "delayed", "grouped", "keyed")
_LEASE = 60_000_000
_MOST = 20


class Book:
    """What was enqueued, started and completed."""

    def __init__(self) -> None:
        self.enqueued: set[r.JobId] = set()
        self.runs: Counter[r.JobId] = Counter()
        self.completed: Counter[r.JobId] = Counter()
        self.running_groups: set[str] = set()
        self.broken: list[str] = []
        self.keys: dict[str, r.JobId] = {}

    def check(self) -> None:
        """Every job that was enqueued has completed, once."""
        lost = self.enqueued - self.completed.keys()
        doubled = [job_id.hex() for job_id, count in self.completed.items() if count > 1]
        ran_twice = [job_id.hex() for job_id, count in self.runs.items() if count > 1]
        assert not lost, f"{len(lost)} of {len(self.enqueued)} lost, such as {min(lost).hex()}"
        assert not doubled
        assert not ran_twice
        assert not self.broken


class Traffic:
    """Some producers and workers, each on a store of its own, as if it were a process."""

    def __init__(self, connect: Callable[[], Awaitable[Moving]], *, seed: int = 1, pace: float = 0.002) -> None:
        self.book = Book()
        self._connect = connect
        self._random = Random(seed)
        self._pace = pace
        self._producing = True
        self._working = True
        self._number = 0

    @asynccontextmanager
    async def running(self, *, producers: int = 2, workers: int = 2) -> AsyncIterator[Book]:
        """Let them run; at the end, producers stop, and workers once everything is done."""
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(self._produce(n)) for n in range(producers)]
            working = [group.create_task(self._work(f"w{n}")) for n in range(workers)]
            try:
                yield self.book
                self._producing = False
                await asyncio.gather(*made)
                async with asyncio.timeout(600):
                    while self.book.enqueued - self.book.completed.keys():
                        await asyncio.sleep(0.02)
            finally:
                self._producing = self._working = False
                await asyncio.wait([*made, *working], timeout=30)

    async def _produce(self, number: int) -> None:
        store = await self._connect()
        try:
            while self._producing:
                rows = [self._row(number) for _ in range(self._random.randint(1, 4))]
                answers = await _patiently(lambda rows=rows: store.insert(rows))  # type: ignore[misc]
                for row, answer in zip(rows, answers, strict=True):
                    if answer.status in (r.InsertStatus.NEW, r.InsertStatus.SAME):
                        self.book.enqueued.add(row.id)
                    elif answer.status is r.InsertStatus.FULL:
                        self.book.broken.append(f"refused, though one of the stores takes jobs: {answer!r}")
                await asyncio.sleep(self._pace)
        finally:
            await store.close()

    def _row(self, number: int) -> r.Row:
        self._number += 1
        queue = self._random.choice(QUEUES)
        job_id = bytes((1, 0x90, number, 0)) + self._number.to_bytes(4) + b"\x70\0\x80\0" + self._random.randbytes(4)
        return r.Row(
            id=job_id,
            queue=queue,
            task="t",
            cells={"parameters": job_id},
            delay=self._random.randint(0, 500_000) if queue == "delayed" else 0,
            group=f"g{self._random.randint(0, 3)}" if queue == "grouped" else None,
            key=f"k{self._random.randint(0, 9)}" if queue == "keyed" else None,
        )

    async def _work(self, holder: str) -> None:
        store = await self._connect()
        try:
            while self._working:
                claim = r.Claim(holder, QUEUES, _MOST, _LEASE)
                claimed = await _patiently(lambda claim=claim: store.claim(claim))  # type: ignore[misc]
                for job in claimed.jobs:
                    self._start(job)
                await asyncio.sleep(self._pace)
                done = [r.Settlement(job.id, job.epoch, holder, JobState.COMPLETED) for job in claimed.jobs]
                for job in claimed.jobs:
                    self._end(job)
                states = await _patiently(lambda done=done: store.finish(done)) if done else []  # type: ignore[misc]
                for job, state in zip(claimed.jobs, states, strict=True):
                    if state is None and not await self._ended(store, job):
                        self.book.broken.append(f"{job.id.hex()} was fenced off")
                    else:
                        self.book.completed[job.id] += 1
                await _patiently(lambda: store.reap(r.Reap(max_lost=100)))
        finally:
            await store.close()

    async def _ended(self, store: Moving, job: r.Leased) -> bool:
        """Whether the answer to an earlier try was lost."""
        [record] = await _patiently(lambda: store.fetch([job.id]))
        return record is not None and (record.state, record.epoch) == (JobState.COMPLETED, job.epoch)

    def _start(self, job: r.Leased) -> None:
        self.book.runs[job.id] += 1
        if job.key is not None:
            if job.key in self.book.keys:
                self.book.broken.append(f"two jobs with the key {job.key} run")
            self.book.keys[job.key] = job.id
        if job.group is not None:
            if job.group in self.book.running_groups:
                self.book.broken.append(f"two jobs of {job.group} run")
            self.book.running_groups.add(job.group)

    def _end(self, job: r.Leased) -> None:
        if job.key is not None:
            self.book.keys.pop(job.key, None)
        if job.group is not None:
            self.book.running_groups.discard(job.group)


async def _patiently(call: Callable[[], Awaitable[object]]):  # type: ignore[no-untyped-def]
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.05)
