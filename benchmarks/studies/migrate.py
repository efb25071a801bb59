"""A store moves to another one under load: how long it takes, what producers feel, and that nothing is lost or doubled.

``python -m benchmarks.studies.migrate`` moves 200,000 waiting jobs from SQLite to PostgreSQL and back while producers
enqueue and workers run jobs; the mover is a process of its own, and is killed every few seconds. ``--jobs 2000`` is a
small run. Every job runs once: the figures say how many did not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter

from servers.postgres import Postgres

from benchmarks.machine import facts
from benchmarks.results import HOME
from headrace.api.connection import open_backend
from headrace.core.clock import SystemClock
from headrace.core.ids import IdMaker, seeded_by_system
from headrace.errors import Unavailable
from headrace.routing import parity, passage
from headrace.routing.moving import Moving
from headrace.seam import records as r
from headrace.types import JobState

OUTPUT = HOME / "migrate.jsonl"
_BATCH = 500
_KILLED_AFTER = 4.0
"""Seconds that a mover lives."""
_QUEUE = "q"


class Load:
    """Producers and workers, and what they did."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._new_id = IdMaker(SystemClock(), seeded_by_system()).new
        self.enqueued: set[bytes] = set()
        self.runs: Counter[bytes] = Counter()
        self.latencies: list[float] = []
        self.producing = self.working = True

    async def opened(self) -> Moving:
        store = open_backend(self._url)
        assert isinstance(store, Moving)
        await store.open()
        return store

    def rows(self, count: int, delay: int = 0) -> list[r.Row]:
        return [
            r.Row(id=self._new_id(), queue=_QUEUE, task="t", cells={"parameters": b"x" * 200}, delay=delay)
            for _ in range(count)
        ]

    async def fill(self, store: Moving, jobs: int) -> None:
        """Jobs that wait for long."""
        for first in range(0, jobs, _BATCH):
            rows = self.rows(min(_BATCH, jobs - first), 3_600_000_000)
            await store.insert(rows)

    async def produce(self) -> None:
        store = await self.opened()
        while self.producing:
            rows = self.rows(1)
            began = time.perf_counter()
            await _patiently(store, lambda store, rows=rows: store.insert(rows))  # type: ignore[misc]
            self.latencies.append(time.perf_counter() - began)
            self.enqueued |= {row.id for row in rows}
            await asyncio.sleep(0.005)
        await store.close()

    async def work(self, holder: str) -> None:
        store = await self.opened()
        while self.working:
            req = r.Claim(holder, (_QUEUE,), 20, 60_000_000)
            jobs = (await _patiently(store, lambda store, req=req: store.claim(req))).jobs  # type: ignore[misc]
            self.runs.update(job.id for job in jobs)
            done = [r.Settlement(job.id, job.epoch, holder, JobState.COMPLETED) for job in jobs]
            await _patiently(store, lambda store, done=done: store.finish(done))  # type: ignore[misc]
            await _patiently(store, lambda store: store.reap(r.Reap(max_lost=100)))
            await asyncio.sleep(0.01)
        await store.close()

    def felt(self) -> dict[str, float]:
        """What producers felt since the last look, in milliseconds."""
        some, self.latencies = sorted(self.latencies), []
        return {
            "p50": 1e3 * statistics.median(some),
            "p99": 1e3 * some[int(0.99 * (len(some) - 1))],
            "calls": len(some),
        }


async def _patiently(store: Moving, call):  # type: ignore[no-untyped-def]
    while True:
        try:
            return await call(store)
        except Unavailable:
            await asyncio.sleep(0.05)


async def _headrace(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "headrace", *words, stderr=subprocess.DEVNULL)


async def _move(url: str, command: str, until: str | None) -> tuple[float, int]:
    """Run the command, and kill it again and again, until the transfer is in that phase (None: there is none): how long
    that took, and how often it was killed."""
    began, kills = time.perf_counter(), 0
    store = open_backend(url)
    assert isinstance(store, Moving)
    await store.open()
    while True:
        process = await _headrace("transfer", command, "--yes", "--url", url)
        try:
            async with asyncio.timeout(_KILLED_AFTER + kills):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            kills += 1
        transfer = await passage.read(store.old)
        if (None if transfer is None else transfer.phase.value) == until:
            await store.close()
            return time.perf_counter() - began, kills


async def run(jobs: int, url: str) -> dict[str, object]:
    """One journey there and back."""
    load = Load(url)
    store = await load.opened()
    await load.fill(store, jobs)
    found: dict[str, object] = {"jobs": jobs}
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(load.produce()) for _ in range(2)]
        working = [group.create_task(load.work(f"w{n}")) for n in range(2)]
        await asyncio.sleep(5)
        found["before"] = load.felt()
        await (await _headrace("transfer", "start", "--url", url)).wait()
        for command, until in (("cutover", "moved"), ("rollback", None)):
            seconds, kills = await _move(url, command, until)
            found[command] = {"seconds": seconds, "kills": kills, "producers": load.felt()}
            if (transfer := await passage.read(store.old)) is not None:
                verdict = await parity.verify(store, transfer)
                found["verdict"] = {"moved": verdict.arrived, "lost": verdict.lost, "doubled": verdict.doubled}
        load.producing = False
        await asyncio.gather(*made)
        async with asyncio.timeout(300):
            while load.enqueued - load.runs.keys():
                await asyncio.sleep(0.1)
        load.working = False
        await asyncio.gather(*working)
    left = sum(queue.scheduled for queue in (await store.stats()).queues)
    found["ran"] = len(load.runs)
    found["ran_twice"] = sum(count > 1 for count in load.runs.values())
    found["never_ran"] = len(load.enqueued - load.runs.keys())
    found["waiting"] = left
    await store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        server = Postgres(None)
        server.start()
        try:
            found = asyncio.run(run(options.jobs, f"sqlite:///{place}/jobs.db -> {server.url()}"))
        finally:
            server.close()
    print(json.dumps(found, indent=2))
    with OUTPUT.open("a") as file:
        file.write(json.dumps({"machine": facts(), **found}) + "\n")


if __name__ == "__main__":
    main()
