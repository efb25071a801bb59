"""PostgreSQL and Valkey together, beside PostgreSQL alone: what a job costs, how fast it is picked up and drained; and
what becomes of windows when Valkey is flushed. In the end it says which goals are reached.

``python -m benchmarks.studies.streams`` takes some minutes; ``--depth 10000 --depth 1000000`` much longer; ``--quick``
a few seconds, which says little. WAL is exact, without full page writes. CPU time counts all processes of a server; a
busy machine changes it less than seconds on the clock. There are small jobs, jobs of the reference load (4.5 KB), and
the latter as a store sees them when their sections are in an object store: a reference in the place of each.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psycopg
from servers.postgres import Postgres
from servers.valkey import Valkey

from benchmarks.machine import facts
from benchmarks.payload import REFERENCE, SMALL
from benchmarks.results import HOME, aligned, shown
from headrace import Streams
from headrace.api.connection import open_backend
from headrace.core.clock import SystemClock
from headrace.core.ids import IdMaker, seeded_by_system
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Claim, Reap, Row, Settlement
from headrace.types import JobState

OUTPUT = HOME / "streams.jsonl"
WAYS = ("postgres", "streams")
KINDS = ("small", "reference", "objects")
"""200 bytes; 4.5 KB in four sections; a reference for each of these."""
_REFERENCE_BYTES = 25
_MEASURED = 20_000
"""Of jobs that wait, at most so many are drained."""
GOALS = {"wal": 0.6, "cpu": 0.6, "drained": 1.3}
"""Beside the plain store: bytes of WAL and CPU time at most, jobs drained a second at least."""
PICKUP, REBUILT, CONSUMERS = 2.0, 60.0, 10
"""Milliseconds; seconds; those that stay, at most."""
WINDOW, WIDEST = 10_000, 1_000_000
"""Jobs that a window has as it comes, and that it may have."""
MEMORY = WINDOW * 1_000
"""Bytes of Valkey that a window of small jobs may take, however many wait behind it."""
_GONE = 180.0
"""Seconds in which the consumers of killed workers must be gone. They go when they were idle for a minute."""
_SHORT = 1_000_000
_LEASE = 30_000_000
_BATCH = 100
_IDS = IdMaker(SystemClock(), seeded_by_system())


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    depth: int = 10_000
    pickups: int = 50
    restarts: int = 500
    kills: int = 50
    times: int = 3


QUICK = Plan(depth=300, pickups=5, restarts=5, kills=2, times=1)


@dataclass(frozen=True)
class Cell:
    """One way to keep jobs; per job, medians: bytes of WAL, microseconds of PostgreSQL's CPU, jobs a second."""

    way: str
    kind: str
    depth: int
    wal_stored: float
    wal_run: float
    cpu: float
    valkey_cpu: float
    stored: float
    drained: float
    pickup: float
    """Milliseconds from the answer to an enqueue to the job, while a worker waits for it; median."""

    @property
    def wal(self) -> float:
        return self.wal_stored + self.wal_run


@dataclass(frozen=True)
class Window:
    """What becomes of a window, beside so many jobs that wait."""

    depth: int
    rebuilt: float
    """Seconds from a flush until all of them are in a window again that has room for them, or a million."""
    memory: int
    """Bytes that Valkey uses more than when it was empty: for a window of 10,000 jobs, however many wait."""
    consumers: int
    """After so many workers came, worked and went, and some were killed with a job in hand."""


class Bench:
    """Two servers, and a backend of one way on them."""

    def __init__(self, postgres: Postgres, valkey: Valkey) -> None:
        self._postgres = postgres
        self.valkey = valkey

    @property
    def postgres_url(self) -> str:
        return self._postgres.url()

    def url(self, way: str, window: int = WINDOW) -> str:
        """A store of this way, blank."""
        with psycopg.connect(self._postgres.url(), autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS headrace CASCADE")
        self.valkey.call("FLUSHALL")
        plain = self._postgres.url()
        return plain if way == "postgres" else Streams(pg=plain, valkey=self.valkey.url(), window=window).url

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

    def valkey_cpu(self) -> float:
        """Seconds that Valkey has used."""
        told = self.valkey.info("cpu")
        return float(told["used_cpu_sys"]) + float(told["used_cpu_user"])

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


def _row(kind: str, queue: str = "q") -> Row:
    sizes = REFERENCE if kind == "reference" else dict.fromkeys(REFERENCE, _REFERENCE_BYTES)
    sizes = {"parameters": SMALL} if kind == "small" else sizes
    return Row(id=_IDS.new(), queue=queue, task="app.task", cells={name: os.urandom(n) for name, n in sizes.items()})


async def store_jobs(backend: Backend, jobs: int, kind: str) -> None:
    for start in range(0, jobs, _BATCH):
        await backend.insert([_row(kind) for _ in range(min(_BATCH, jobs - start))])


async def drain(backend: Backend, jobs: int, holders: int = 2) -> None:
    left = jobs
    asked = jobs

    async def work(holder: str) -> None:
        nonlocal left
        done: list[Settlement] = []
        assert backend.finish_and_claim is not None
        nonlocal asked
        while left > 0:
            wanted = min(_BATCH, asked)
            asked -= wanted
            states, claimed = await backend.finish_and_claim(done, Claim(holder, ("q",), wanted, _LEASE))
            asked += wanted - len(claimed.jobs)
            left -= sum(state is not None for state in states)
            done = [Settlement(job.id, job.epoch, holder, JobState.COMPLETED) for job in claimed.jobs]
            if not done and left > 0:
                await asyncio.sleep(0.002)

    await asyncio.gather(*(work(f"w{number}") for number in range(holders)))


async def _pickups(backend: Backend, other: Backend, times: int, kind: str) -> list[float]:
    """A worker waits for hints, as idle workers do, on a queue of its own."""
    found: list[float] = []
    assert backend.hints is not None
    async with backend.hints.listen(["queue:idle"]) as hints:
        await backend.claim(Claim("idle", ("idle",), 1, _LEASE))
        for _ in range(times):
            heard = asyncio.ensure_future(anext(hints))
            await asyncio.sleep(0.15)
            await other.insert([_row(kind, "idle")])
            began = time.perf_counter()
            while not (jobs := (await backend.claim(Claim("idle", ("idle",), 1, _LEASE))).jobs if heard.done() else []):
                await asyncio.wait([heard], timeout=0.5)
                if not heard.done():
                    break
            if jobs:
                found.append((time.perf_counter() - began) * 1e3)
                await backend.finish([Settlement(jobs[0].id, jobs[0].epoch, "idle", JobState.COMPLETED)])
            heard.cancel()
    return found


async def compare(bench: Bench, plan: Plan, kind: str) -> list[Cell]:
    """Both ways in turns."""
    rounds: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    for _ in range(plan.times):
        for way in WAYS:
            rounds[way].append(await _measure(bench, plan, way, kind))
    return [
        Cell(way, kind, plan.depth, *[statistics.median(part) for part in zip(*found, strict=True)])
        for way, found in rounds.items()
    ]


async def _measure(bench: Bench, plan: Plan, way: str, kind: str) -> tuple[float, ...]:
    backend = open_backend(bench.url(way))
    other = backend.sibling()
    await backend.open()
    await other.open()
    drained = min(plan.depth, _MEASURED)
    try:
        await store_jobs(backend, 1, kind)
        await drain(backend, 1)
        first = bench.wal(), bench.cpu(), bench.valkey_cpu(), time.perf_counter()
        await store_jobs(backend, plan.depth, kind)
        stored = bench.wal(), bench.cpu(), bench.valkey_cpu(), time.perf_counter()
        await drain(backend, drained)
        last = bench.wal(), bench.cpu(), bench.valkey_cpu(), time.perf_counter()
        to_store = [(after - before) / plan.depth for before, after in zip(first, stored, strict=True)]
        to_run = [(after - before) / drained for before, after in zip(stored, last, strict=True)]
        pickups = await _pickups(backend, other, plan.pickups, kind)
    finally:
        await other.close()
        await backend.close()
    cpu, valkey_cpu = ((to_store[i] + to_run[i]) * 1e6 for i in (1, 2))
    return to_store[0], to_run[0], cpu, valkey_cpu, 1 / to_store[3], 1 / to_run[3], statistics.median(pickups)


async def windows(bench: Bench, plan: Plan) -> Window:
    """Flushes beside jobs that wait, and workers that come and go."""
    rebuilt, _ = await _refill(bench, plan, min(WIDEST, max(WINDOW, plan.depth)))
    _, rest = await _refill(bench, plan, WINDOW)
    return Window(plan.depth, rebuilt, *rest)


async def _refill(bench: Bench, plan: Plan, window: int) -> tuple[float, tuple[int, int]]:
    """How long it takes to fill a window of this size again; the memory that it needs, and how many consumers stay."""
    backend = open_backend(bench.url("streams", window))
    empty = bench.memory()
    await backend.open()
    try:
        await store_jobs(backend, plan.depth, "small")
        bench.valkey.call("FLUSHALL")
        began = time.perf_counter()
        target = min(plan.depth, window) - _BATCH
        while await _numbers(backend, "waiting") < target:
            await backend.claim(Claim("w", ("q",), 1, _LEASE))
            await asyncio.sleep(0.01)
        rebuilt = time.perf_counter() - began
        memory = bench.memory() - empty
        return rebuilt, (memory, await _consumers(backend, plan) if window == WINDOW else 0)
    finally:
        await backend.close()


async def _numbers(backend: Backend, name: str) -> int:
    assert backend.windows is not None
    return max((getattr(one, name) for one in await backend.windows.look()), default=0)


async def _consumers(backend: Backend, plan: Plan) -> int:
    """How many stay after workers came, worked and went, and others were killed with a job in hand."""
    for number in range(plan.restarts):
        holder = f"restarted-{number}"
        jobs = (await backend.claim(Claim(holder, ("q",), 1, _LEASE))).jobs
        await backend.finish([Settlement(job.id, job.epoch, holder, JobState.COMPLETED) for job in jobs])
        await backend.renew(Beat(holder, holder, ("q",), _LEASE, leaving=True))
    for number in range(plan.kills):
        await backend.claim(Claim(f"killed-{number}", ("q",), 1, _SHORT))
    until = time.monotonic() + _GONE
    while (found := await _numbers(backend, "consumers")) > CONSUMERS and time.monotonic() < until:
        await asyncio.sleep(_SHORT / 1e6)
        await backend.reap(Reap())
        jobs = (await backend.claim(Claim("stays", ("q",), 1, _LEASE))).jobs
        await backend.finish([Settlement(job.id, job.epoch, "stays", JobState.COMPLETED) for job in jobs])
    return found


def table(cells: Sequence[Cell], windows: Sequence[Window]) -> str:
    """The figures for people."""
    heads = ("WAL B/job", "to run", "CPU us/job", "Valkey us", "stored/s", "drained/s", "pick-up ms")
    rows: list[Sequence[str]] = [("way", "jobs", "depth", *heads)]
    for c in cells:
        figures = (c.wal, c.wal_run, c.cpu, c.valkey_cpu, c.stored, c.drained, c.pickup)
        rows.append((c.way, c.kind, f"{c.depth:,}", *map(shown, figures)))
    said = [
        f"after a flush beside {one.depth:,} jobs: there again in {shown(one.rebuilt)} s; {one.memory:,} B in Valkey; "
        f"{one.consumers} consumers after the restarts"
        for one in windows
    ]
    return "\n".join([*aligned(rows), *said])


def verdict(cells: Sequence[Cell], windows: Sequence[Window]) -> list[str]:
    """Goal by goal, whether it is reached."""
    said = []
    for plain, ours in zip(cells[::2], cells[1::2], strict=True):
        beside = f"{ours.kind} jobs, {ours.depth:,} deep"
        for name, goal in GOALS.items():
            share = getattr(ours, name) / getattr(plain, name)
            good = share >= goal if name == "drained" else share <= goal
            said.append(f"{_is(good)} {name} {share:.0%} of the plain store's, {beside}")
        said.append(f"{_is(ours.pickup <= PICKUP)} pick-up {ours.pickup:.2f} ms, {beside}")
    inline = [cell for cell in cells if (cell.way, cell.kind) == ("postgres", "reference")]
    small = [cell for cell in cells if (cell.way, cell.kind) == ("streams", "objects")]
    for plain, ours in zip(inline, small, strict=False):
        for name, goal in GOALS.items():
            share = getattr(ours, name) / getattr(plain, name)
            good = share >= goal if name == "drained" else share <= goal
            said.append(f"{_is(good)} {name} {share:.0%}, with objects, of the plain store's inline")
    for one in windows:
        beside = f"beside {one.depth:,} jobs"
        said.append(f"{_is(one.rebuilt <= REBUILT)} all in a window again in {one.rebuilt:.1f} s, {beside}")
        said.append(f"{_is(one.memory <= MEMORY)} {one.memory:,} B in Valkey, at most {MEMORY:,}, {beside}")
        said.append(f"{_is(one.consumers <= CONSUMERS)} {one.consumers} consumers stayed, {beside}")
    return said


def _is(good: bool) -> str:
    return "reached" if good else "MISSED "


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.streams", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--depth", type=int, action="append", help="jobs that wait; may be repeated")
    parser.add_argument("--kind", choices=KINDS, action="append", help="may be repeated; default: all")
    parser.add_argument("--times", type=int, help="rounds")
    parser.add_argument("--place", type=Path, help="where PostgreSQL's files are")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    base = QUICK if given.quick else Plan()
    plans = [replace(base, depth=depth, times=given.times or base.times) for depth in given.depth or [base.depth]]
    postgres, valkey = Postgres(given.place, {"full_page_writes": "off"}), Valkey()
    cells: list[Cell] = []
    found: list[Window] = []
    try:
        postgres.start()
        valkey.start()
        bench = Bench(postgres, valkey)
        for plan in plans:
            for kind in given.kind or KINDS:
                cells += asyncio.run(compare(bench, plan, kind))
            found.append(asyncio.run(windows(bench, plan)))
    finally:
        valkey.close()
        postgres.close()
    said = verdict(cells, found)
    machine = facts(given.place or Path(tempfile.gettempdir()))
    lines: list[dict[str, object]] = [{"kind": "run", "machine": machine, "verdict": said}]
    lines += [
        {"kind": "cell", "jobs": cell.kind, **{k: v for k, v in asdict(cell).items() if k != "kind"}} for cell in cells
    ]
    lines += [{"kind": "window", **asdict(one)} for one in found]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    print(table(cells, found))
    print("\n".join(said))
    return int(any(line.startswith(_is(False)) for line in said))


if __name__ == "__main__":
    sys.exit(main())
