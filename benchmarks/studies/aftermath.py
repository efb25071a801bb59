"""What a burst leaves behind: jobs of 100,000 tenants in one governed queue, or of 10,000 queues, come, run, and are
swept.

``python -m benchmarks.studies.aftermath`` takes six minutes on all stores; ``--quick`` some seconds. Before and after
the burst the same calls are made. They are to cost the store no more than before, by its own account, once the janitor
of a worker has been there two days later; and no step of the janitor keeps the server for longer than 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import apsw

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.metrics.metric import percentile
from benchmarks.postgres_server import PostgresServer
from benchmarks.results import HOME, aligned, shown
from benchmarks.studies.flat_meters import Meter, Steps, metered
from benchmarks.studies.stores import STORES, Fresh, fresh, keep
from benchmarks.valkey_server import ValkeyServer
from headrace import App
from headrace.core.clock import ManualClock, SystemClock
from headrace.core.config import RetentionSettings
from headrace.core.events import Observers
from headrace.keeping.retention import Retention
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Leased, Row, Settlement
from headrace.types import JobState

OUTPUT = HOME / "aftermath.jsonl"
NOISE = 1.5
BOUND = 50.0
"""Milliseconds."""
QUEUE = "steady"
_HOLDER = "h"
_LEASE = 3_600_000_000
_LATER = 2 * 86_400_000_000
_RUNS = 4
"""Of the janitor: what it removes first is counted off in a later one, and names go after that."""
_CHUNK = 1_000
_TABLES = ("tenants", "lanes", "queues", "totals")
_SIZES: Mapping[str, str] = {
    "string": "EXISTS", "hash": "HLEN", "zset": "ZCARD", "set": "SCARD", "list": "LLEN", "stream": "XLEN"
}  # fmt: skip


@dataclass(frozen=True)
class Burst:
    """So many of something that users choose."""

    name: str
    size: int
    job: Callable[[int], Mapping[str, Any]]
    governed: bool


def bursts(scale: float) -> list[Burst]:
    """Both of them."""
    return [
        Burst("tenants", int(100_000 * scale), lambda n: {"queue": QUEUE, "tenant": f"t{n}"}, governed=True),
        Burst("queues", int(10_000 * scale), lambda n: {"queue": f"q{n}"}, governed=False),
    ]


@dataclass(frozen=True)
class Step:
    """One thing that is asked, in one phase."""

    burst: str
    size: int
    phase: str
    call: str
    calls: int
    p50: float
    p99: float
    effort: float
    unit: str
    slowest: float
    """Milliseconds, at the server."""
    left: int
    """What the store has when the phase begins: rows of tenants and queues, or entries of all keys."""
    kind: str = "aftermath"


class Site:
    """A store, and what is asked of it."""

    def __init__(self, burst: Burst, at: Fresh, meter: Meter, app: App, backend: Backend) -> None:
        self._burst = burst
        self._at = at
        self._meter = meter
        self._app = app
        self._backend = backend
        self._leased: list[Leased] = []
        self._left = 0
        self.steps: list[Step] = []

    async def run(self, calls: int) -> None:
        """All phases."""
        await self._janitor(SystemClock()).sweep()  # what a new store needs once
        if self._burst.governed:
            await self._app.policies.set(QUEUE, tenant_batch=10)
        await self._insert_one()
        await self._claim()
        await self._finish()
        await self._steady("before", calls)
        rows = [self._row(**self._burst.job(number)) for number in range(self._burst.size)]
        for first in range(0, len(rows), _CHUNK):
            await self._backend.insert(rows[first : first + _CHUNK])
        self._at.settle()
        self._left = left(self._at)
        if not self._burst.governed:
            names = [f"q{number}" for number in range(10)]
            await self._ask("full", "stats of all", 5, self._backend.stats)
            await self._ask("full", "stats of ten", 20, lambda: self._backend.stats(queues=names))
        await self._drain()
        self._left = left(self._at)
        await self._ask("drained", "janitor", 1, self._janitor(SystemClock()).sweep)
        await self._steady("drained", calls)
        late = ManualClock(time.time_ns() // 1_000 + _LATER)
        for _ in range(_RUNS):
            await self._ask("two days later", "janitor", 1, self._janitor(late).sweep)
            late.advance("5m")
        await self._steady("two days later", calls)

    def _row(self, **more: Any) -> Row:
        return Row(id=self._app.client.packer.new_id(), task="nothing", cells={}, **more)

    def _janitor(self, clock: Any) -> Retention:
        return Retention(self._backend, clock, Random(1), Observers(), RetentionSettings())

    async def _steady(self, phase: str, calls: int) -> None:
        """One job after the other, in one queue."""
        self._left = left(self._at)
        for _ in range(calls // 10):
            for name, call in (("insert", self._insert_one), ("claim", self._claim), ("finish", self._finish)):
                await self._ask(phase, name, 10, call)

    async def _insert_one(self) -> None:
        await self._backend.insert([self._row(queue=QUEUE, tenant="steady")])

    async def _claim(self) -> None:
        self._leased += (await self._backend.claim(Claim(_HOLDER, (QUEUE,), 1, _LEASE))).jobs

    async def _finish(self) -> None:
        job = self._leased.pop(0)
        await self._backend.finish([Settlement(job.id, job.epoch, _HOLDER, JobState.COMPLETED, keep=False)])

    async def _drain(self) -> None:
        names = list(dict.fromkeys(self._burst.job(number)["queue"] for number in range(self._burst.size)))
        for first in range(0, len(names), 100):
            while True:
                found = await self._backend.claim(Claim(_HOLDER, tuple(names[first : first + 100]), 500, _LEASE))
                if not found.jobs and found.next_in is None:
                    break
                await self._backend.finish(
                    [Settlement(job.id, job.epoch, _HOLDER, JobState.COMPLETED) for job in found.jobs]
                )

    async def _ask(self, phase: str, name: str, calls: int, call: Callable[[], Any]) -> None:
        self._meter.clear()
        walls, slowest = [], 0.0
        for _ in range(calls):
            cpu, began = time.process_time(), time.perf_counter()
            await call()
            walls.append((time.perf_counter() - began) * 1e3)
            slowest = max(slowest, (time.process_time() - cpu) * 1e3)
        effort, told = self._meter.effort() / calls, self._meter.slowest()
        self.steps.append(
            Step(
                self._burst.name,
                self._burst.size,
                phase,
                name,
                calls,
                statistics.median(walls),
                percentile(walls, 0.99),
                effort,
                self._meter.unit,
                slowest if told is None else told,
                self._left,
            )
        )


def left(at: Fresh) -> int:
    """What is there beyond jobs."""
    if isinstance(at.server, PostgresServer):
        counts = " UNION ALL ".join(f"SELECT count(*) FROM headrace.{name}" for name in _TABLES)
        return sum(count for [count] in at.server.ask(counts, database=at.database))
    if isinstance(at.server, ValkeyServer):
        client = at.server.connect(at.database)
        try:
            return _entries(client)
        finally:
            client.close()
    connection = apsw.Connection(at.url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        known = {name for [name] in connection.execute("SELECT name FROM sqlite_master")}
        return sum(connection.execute(f"SELECT count(*) FROM {name}").get for name in known & {*_TABLES})
    finally:
        connection.close()


def _entries(client: Any) -> int:
    keys = list(client.scan_iter(count=_CHUNK))
    found = 0
    for first in range(0, len(keys), _CHUNK):
        some, kinds, sizes = keys[first : first + _CHUNK], client.pipeline(False), client.pipeline(False)
        for key in some:
            kinds.type(key)
        for key, kind in zip(some, kinds.execute(), strict=True):
            sizes.execute_command(_SIZES[kind.decode()], key)
        found += sum(sizes.execute())
    return found


def gathered(steps: Sequence[Step]) -> list[Step]:
    """Those of the same call and phase as one."""
    found: dict[tuple[str, str, str], list[Step]] = {}
    for step in steps:
        found.setdefault((step.burst, step.phase, step.call), []).append(step)
    return [
        Step(
            burst,
            same[0].size,
            phase,
            call,
            sum(step.calls for step in same),
            statistics.median(step.p50 for step in same),
            statistics.median(step.p99 for step in same),
            statistics.median(step.effort for step in same),
            same[0].unit,
            max(step.slowest for step in same),
            same[-1].left,
        )
        for (burst, phase, call), same in found.items()
    ]


def grown(steps: Sequence[Step]) -> list[Step]:
    """What costs the store more at the end than before, or keeps it for too long."""
    before = {(step.burst, step.call): step.effort for step in steps if step.phase == "before"}
    return [
        step
        for step in steps
        if (step.slowest > BOUND and (step.call, step.unit) != ("janitor", Steps.unit))  # there, it is the whole run
        or (step.phase == "two days later" and step.effort > NOISE * before.get((step.burst, step.call), step.effort))
    ]


def study(store: str, servers: Servers, burst: Burst, calls: int) -> list[Step]:
    """One burst on one store."""
    with fresh(store, servers, kind="counting") as at, metered(at) as meter:

        async def run() -> list[Step]:
            async with App(at.url) as app:
                site = Site(burst, at, meter, app, await app.client.backend())
                await site.run(calls)
                return site.steps

        return gathered(asyncio.run(run()))


def table(steps: Sequence[Step]) -> str:
    """The steps for people."""
    rows: list[Sequence[str]] = [
        ("burst of", "phase", "call", "p50 ms", "p99 ms", steps[0].unit, "slowest ms", "left", "")
    ]
    worse = grown(steps)
    for s in steps:
        figures = (s.p50, s.p99, s.effort, s.slowest)
        told = "NOT FLAT" if s in worse else ""
        rows.append((f"{s.size:,} {s.burst}", s.phase, s.call, *map(shown, figures), f"{s.left:,}", told))
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.aftermath", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small bursts, to see that it works")
    parser.add_argument("--store", choices=STORES, action="append", help="may be repeated; default: all")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    scale, calls = (0.01, 20) if given.quick else (1.0, 200)
    flat = True
    for store in given.store or STORES:
        with Servers(None, None) as servers:
            steps = [step for burst in bursts(scale) for step in study(store, servers, burst, calls)]
        print(f"{store}\n{table(steps)}\n", flush=True)
        keep(given.output, store, facts(Path(tempfile.gettempdir())), [asdict(step) for step in steps])
        flat = flat and not grown(steps)
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
