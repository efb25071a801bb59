"""PostgreSQL and Valkey together, beside PostgreSQL alone: what a job costs, how fast it is picked up and drained; and
what becomes of windows when Valkey is flushed.

``python -m benchmarks.studies.streams`` takes some minutes; ``--depth 1000000`` much longer; ``--quick`` a few seconds,
which says little. WAL is exact, without full page writes. CPU time counts all processes of PostgreSQL; a busy machine
changes it less than seconds on the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from servers.postgres import Postgres
from servers.valkey import Valkey

from benchmarks.machine import facts
from benchmarks.results import HOME, aligned, shown
from headrace import Streams
from headrace.api.connection import open_backend
from headrace.core.clock import SystemClock
from headrace.core.ids import IdMaker, seeded_by_system
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Claim, Row, Settlement
from headrace.types import JobState

OUTPUT = HOME / "streams.jsonl"
WAYS = ("postgres", "streams")
_LEASE = 30_000_000
_BATCH = 100
_IDS = IdMaker(SystemClock(), seeded_by_system())


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    depth: int = 10_000
    size: int = 200
    pickups: int = 200
    restarts: int = 500
    times: int = 3


QUICK = Plan(depth=300, pickups=5, restarts=5, times=1)


@dataclass(frozen=True)
class Cell:
    """One way to keep jobs; per job, medians: bytes of WAL, microseconds of PostgreSQL's CPU, jobs a second."""

    way: str
    depth: int
    wal: float
    cpu: float
    stored: float
    drained: float
    pickup: float
    """Milliseconds from the answer to an enqueue to the job, while a worker waits for it; median."""


@dataclass(frozen=True)
class Window:
    """What becomes of a window, beside so many jobs that wait."""

    depth: int
    rebuilt: float
    """Seconds from a flush to a window that is full again."""
    memory: int
    """Bytes that Valkey uses more than when it was empty."""
    consumers: int
    """After so many workers came, worked and went."""


class Bench:
    """Two servers, and a backend of one way on them."""

    def __init__(self, postgres: Postgres, valkey: Valkey) -> None:
        self._postgres = postgres
        self.valkey = valkey

    def url(self, way: str) -> str:
        """A store of this way, blank."""
        with psycopg.connect(self._postgres.url(), autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS headrace CASCADE")
        self.valkey.call("FLUSHALL")
        plain = self._postgres.url()
        return plain if way == "postgres" else Streams(pg=plain, valkey=self.valkey.url()).url

    def wal(self) -> int:
        """How far the log of writes has come."""
        with psycopg.connect(self._postgres.url(), autocommit=True) as connection:
            row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").fetchone()
        assert row is not None
        return int(row[0])

    def cpu(self) -> float:
        """Seconds that all processes of PostgreSQL have used."""
        pid = int(Path(self._postgres.directory, "data", "postmaster.pid").read_text().splitlines()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ticks = sum(_ticks(child, reaped=False) for child in children) + _ticks(str(pid), reaped=True)
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes that Valkey uses."""
        lines = self.valkey.call("INFO", "memory").decode().splitlines()
        return int(next(line for line in lines if line.startswith("used_memory:")).partition(":")[2])


def _ticks(pid: str, *, reaped: bool) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11 : 15 if reaped else 13]))


def _row(size: int) -> Row:
    return Row(id=_IDS.new(), queue="q", task="app.task", cells={"parameters": os.urandom(size)})


async def _store(backend: Backend, jobs: int, size: int) -> None:
    for start in range(0, jobs, _BATCH):
        await backend.insert([_row(size) for _ in range(min(_BATCH, jobs - start))])


async def _drain(backend: Backend, jobs: int, holders: int = 2) -> None:
    left = jobs

    async def work(holder: str) -> None:
        nonlocal left
        done: list[Settlement] = []
        assert backend.finish_and_claim is not None
        while left > 0:
            states, claimed = await backend.finish_and_claim(done, Claim(holder, ("q",), _BATCH, _LEASE))
            left -= sum(state is not None for state in states)
            done = [Settlement(job.id, job.epoch, holder, JobState.COMPLETED) for job in claimed.jobs]
            if not done and left > 0:
                await asyncio.sleep(0.002)

    await asyncio.gather(*(work(f"w{number}") for number in range(holders)))


async def _pickups(backend: Backend, other: Backend, times: int, size: int) -> list[float]:
    """A worker waits for hints, as idle workers do."""
    found: list[float] = []
    assert backend.hints is not None
    async with backend.hints.listen(["queue:q"]) as hints:
        await backend.claim(Claim("idle", ("q",), 1, _LEASE))
        for _ in range(times):
            heard = asyncio.ensure_future(anext(hints))
            await asyncio.sleep(0.15)
            await other.insert([_row(size)])
            began = time.perf_counter()
            while not (jobs := (await backend.claim(Claim("idle", ("q",), 1, _LEASE))).jobs if heard.done() else []):
                await asyncio.wait([heard], timeout=0.5)
                if not heard.done():
                    break
            if jobs:
                found.append((time.perf_counter() - began) * 1e3)
                await backend.finish([Settlement(jobs[0].id, jobs[0].epoch, "idle", JobState.COMPLETED)])
            heard.cancel()
    return found


async def compare(bench: Bench, plan: Plan) -> list[Cell]:
    """Both ways in turns."""
    rounds: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    for _ in range(plan.times):
        for way in WAYS:
            backend = open_backend(bench.url(way))
            other = backend.sibling()
            await backend.open()
            await other.open()
            try:
                await _store(backend, 1, plan.size)
                await _drain(backend, 1)
                wal, cpu, began = bench.wal(), bench.cpu(), time.perf_counter()
                await _store(backend, plan.depth, plan.size)
                between = time.perf_counter()
                await _drain(backend, plan.depth)
                ended = time.perf_counter()
                spent = (bench.wal() - wal) / plan.depth, (bench.cpu() - cpu) / plan.depth * 1e6
                pickups = await _pickups(backend, other, plan.pickups, plan.size)
                rates = plan.depth / (between - began), plan.depth / (ended - between)
                rounds[way].append((*spent, *rates, statistics.median(pickups) if pickups else float("nan")))
            finally:
                await other.close()
                await backend.close()
    return [
        Cell(way, plan.depth, *[statistics.median(part) for part in zip(*found, strict=True)])
        for way, found in rounds.items()
    ]


async def windows(bench: Bench, plan: Plan) -> Window:
    """A flush beside jobs that wait, and workers that come and go."""
    backend = open_backend(bench.url("streams"))
    empty = bench.memory()
    await backend.open()
    try:
        await _store(backend, plan.depth, plan.size)
        assert backend.windows is not None
        bench.valkey.call("FLUSHALL")
        began = time.perf_counter()
        target = min(plan.depth, 10_000) - _BATCH
        waiting = 0
        while waiting < target:
            await backend.claim(Claim("w", ("q",), 1, _LEASE))
            waiting = sum(one.waiting for one in await backend.windows.look())
        rebuilt = time.perf_counter() - began
        memory = bench.memory() - empty
        for number in range(plan.restarts):
            holder = f"restarted-{number}"
            jobs = (await backend.claim(Claim(holder, ("q",), 1, _LEASE))).jobs
            await backend.finish([Settlement(job.id, job.epoch, holder, JobState.COMPLETED) for job in jobs])
            await backend.renew(Beat(holder, holder, ("q",), _LEASE, leaving=True))
        consumers = max(one.consumers for one in await backend.windows.look())
    finally:
        await backend.close()
    return Window(plan.depth, rebuilt, memory, consumers)


def table(cells: Sequence[Cell], window: Window) -> str:
    """The figures for people."""
    rows: list[Sequence[str]] = [("way", "depth", "WAL B/job", "CPU us/job", "stored/s", "drained/s", "pick-up ms")]
    rows += [(c.way, f"{c.depth:,}", *(shown(n) for n in (c.wal, c.cpu, c.stored, c.drained, c.pickup))) for c in cells]
    said = f"after a flush beside {window.depth:,} jobs: full again in {shown(window.rebuilt)} s, "
    said += f"{window.memory:,} B in Valkey; {window.consumers} consumers after the restarts"
    return "\n".join([*aligned(rows), said])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.streams", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--depth", type=int, help="jobs that wait")
    parser.add_argument("--times", type=int, help="rounds")
    parser.add_argument("--place", type=Path, help="where PostgreSQL's files are")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    base = QUICK if given.quick else Plan()
    plan = Plan(given.depth or base.depth, base.size, base.pickups, base.restarts, given.times or base.times)
    postgres, valkey = Postgres(given.place, {"full_page_writes": "off"}), Valkey()
    try:
        postgres.start()
        valkey.start()
        bench = Bench(postgres, valkey)
        cells, window = asyncio.run(compare(bench, plan)), asyncio.run(windows(bench, plan))
    finally:
        valkey.close()
        postgres.close()
    machine = facts(given.place or Path(tempfile.gettempdir()))
    lines: list[dict[str, object]] = [{"kind": "run", "machine": machine}]
    lines += [{"kind": "cell", **asdict(cell)} for cell in cells]
    lines.append({"kind": "window", **asdict(window)})
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    print(table(cells, window))
    return 0


if __name__ == "__main__":
    sys.exit(main())
