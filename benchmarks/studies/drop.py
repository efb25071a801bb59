"""A day of fifty million jobs goes on PostgreSQL: how long others wait meanwhile, beside how long they wait anyway.

``python -m benchmarks.studies.drop`` takes a quarter of an hour and 25 GB of disk, most of it for the fill;
``--rows 10000000`` a fifth of that; ``--quick`` some seconds. A day of a million goes first, for comparison. The day is
filled by the server itself, with jobs as workers leave them, and is not vacuumed any more, as a day that is over; then
a worker's janitor comes. All the while others insert, claim, fetch and finish one job after the other. While the day
goes, the 99th percentile of their calls is to be at most twice that of before, or 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.metrics.metric import percentile
from benchmarks.postgres_server import PostgresServer
from benchmarks.results import HOME, aligned, shown
from benchmarks.studies.stores import fresh, keep
from headrace.backends.postgres import PostgresBackend
from headrace.seam.records import Claim, Row, Settlement, SweepClause, SweepTarget
from headrace.types import JobState

OUTPUT = HOME / "drop.jsonl"
SIZES = (1_000_000, 50_000_000)
_DAY = 86_400_000_000
_CLAUSE = [SweepClause(target=SweepTarget.COMPLETED, older_than=_DAY)]
_BYTES = 100
FACTOR = 2.0
BOUND = 50.0
"""Milliseconds."""
_CALLS = ("insert", "claim", "fetch", "finish")
_FILL = """
    BEGIN;
    CREATE TABLE headrace.jobs_{day} (LIKE headrace.jobs INCLUDING CONSTRAINTS INCLUDING STORAGE)
    WITH (toast_tuple_target = 8160, autovacuum_enabled = off);
    CREATE TABLE headrace.ended_{day} (LIKE headrace.ended INCLUDING CONSTRAINTS INCLUDING STORAGE)
    WITH (autovacuum_enabled = off);
    INSERT INTO headrace.jobs_{day} (id, enqueued_at, task, tenant, parameters)
    SELECT (lpad(to_hex({first} + n * 86400000 / {rows}), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid,
        {first} * 1000, 'nothing', '', decode(repeat(lpad(to_hex(n), 8, '0'), {bytes} / 4), 'hex')
    FROM generate_series(0, {rows}::bigint - 1) AS n;
    INSERT INTO headrace.ended_{day} (
        id, finished_at, held_until, run_at, qid, epoch, attempt, lost, size, state, priority, keyed, reason
    )
    SELECT (lpad(to_hex({first} + n * 86400000 / {rows}), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid,
        {first} * 1000 + n * 86400000000 / {rows}, {first} * 1000 + n * 86400000000 / {rows} + 3600000000,
        {first} * 1000, (SELECT q.qid FROM headrace.queues AS q WHERE q.name = 'q'), 1, 1, 0, {bytes}, 3, 0, false, ''
    FROM generate_series(0, {rows}::bigint - 1) AS n;
    INSERT INTO headrace.deltas (qid, state, jobs, bytes)
    SELECT q.qid, 3, {rows}, {rows}::bigint * {bytes} FROM headrace.queues AS q WHERE q.name = 'q';
    ALTER TABLE headrace.jobs ATTACH PARTITION headrace.jobs_{day} FOR VALUES FROM ('{lowest}') TO ('{next}');
    ALTER TABLE headrace.ended ATTACH PARTITION headrace.ended_{day} FOR VALUES FROM ('{lowest}') TO ('{next}');
    COMMIT
"""
_SIZE = "SELECT pg_database_size(current_database())"
_GOING = "SELECT EXISTS (SELECT FROM headrace.gone_days)"
_THERE = "SELECT to_regclass('headrace.jobs_{day}') IS NOT NULL"
_SLOWEST = """
    SELECT coalesce(max(s.max_exec_time) FILTER (WHERE s.query ~ 'drop_day_v1'), 0),
        coalesce(max((s.shared_blks_hit + s.shared_blks_read) / s.calls) FILTER (WHERE s.query ~ 'drop_day_v1'), 0),
        coalesce(max(s.max_exec_time) FILTER (WHERE s.query ~ 'settle_day_v1'), 0)
    FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = %(name)s
"""


@dataclass(frozen=True)
class Cell:
    """One kind of call, in one phase. Milliseconds."""

    phase: str
    call: str
    calls: int
    p50: float
    p99: float
    most: float


@dataclass(frozen=True)
class Going:
    """How the day went. Seconds."""

    rows: int
    size: int
    """Bytes of the database when it was full."""
    filled: float
    taken_out: float
    """From when the janitor came to when the day was out of the tables …"""
    counted_off: float
    """… and from then to when its files were gone."""
    drop: float
    """The one statement that takes it out, in milliseconds …"""
    pages: int
    """… and in pages that it touched …"""
    step: float
    """… and the longest of those that count it off, in milliseconds."""
    left: int
    """Bytes of the database at the end."""


class Others:
    """Those who have something else to do."""

    def __init__(self, store: PostgresBackend) -> None:
        self._store = store
        self._took: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.phase = "before"
        self.goes_on = True

    async def run(self) -> None:
        """Insert, claim, fetch and finish until told to stop."""
        store, number = self._store, 0
        while self.goes_on:
            now = time.time_ns() // 1_000_000
            number += 1
            row = Row(now.to_bytes(6, "big") + bytes.fromhex(f"7000900000{number:010x}"), "q", "nothing", {})
            await self._timed("insert", store.insert([row]))
            claimed = await self._timed("claim", store.claim(Claim("h", ("q",), 1, _DAY)))
            await self._timed("fetch", store.fetch([row.id]))
            done = [Settlement(job.id, job.epoch, "h", JobState.COMPLETED) for job in claimed.jobs]
            await self._timed("finish", store.finish(done))
            await asyncio.sleep(0.002)

    async def _timed(self, name: str, call: Awaitable[Any]) -> Any:
        phase, began = self.phase, time.perf_counter()
        answer = await call
        self._took[phase, name].append((time.perf_counter() - began) * 1e3)
        return answer

    def cells(self) -> list[Cell]:
        """All phases."""
        return [
            Cell(phase, name, len(took), percentile(took, 0.5), percentile(took, 0.99), max(took))
            for (phase, name), took in self._took.items()
        ]


def fill(url: str, rows: int) -> str:
    """Three days ago, so many jobs came and were completed; what that day is called."""
    then = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
    day, first = then.strftime("%Y%m%d"), int(then.timestamp() * 1_000)
    bounds = [f"{first + number * _DAY // 1_000:012x}" + "0" * 20 for number in (0, 1)]
    with psycopg.connect(url, autocommit=True) as connection:
        query = _FILL.format(day=day, first=first, rows=rows, bytes=_BYTES, lowest=bounds[0], next=bounds[1])
        connection.execute(query.encode())
        connection.execute("CHECKPOINT")
    return day


async def measure(
    server: PostgresServer, url: str, database: str, rows: int, seconds: float
) -> tuple[Going, list[Cell]]:
    """Fill the day, and have it go."""
    store, keeper = PostgresBackend(url), PostgresBackend(url)
    await store.open()
    await keeper.open()
    await keeper.tidy(_CLAUSE)
    await store.insert([Row(bytes(16), "q", "nothing", {})])
    began = time.perf_counter()
    day = await asyncio.to_thread(fill, url, rows)
    filled = time.perf_counter() - began
    others = Others(store)
    with server.connect(database) as look:

        def told(query: str) -> Any:
            return (look.execute(query.encode()).fetchone() or (None,))[0]

        size = told(_SIZE)
        async with asyncio.TaskGroup() as group:
            group.create_task(others.run())
            await asyncio.sleep(seconds)
            began = time.perf_counter()
            others.phase = "the day is taken out"
            taking = group.create_task(_tidied(keeper, look))
            while told(_THERE.format(day=day)):
                await asyncio.sleep(0.01)
            taken_out = time.perf_counter()
            others.phase = "it is counted off"
            while told(_GOING):
                await asyncio.sleep(0.05)
            counted_off = time.perf_counter()
            others.phase = "after"
            await taking
            await asyncio.sleep(seconds)
            others.goes_on = False
        [[drop, pages, step]] = server.ask(_SLOWEST, {"name": database})
        left = told(_SIZE)
    await store.close()
    await keeper.close()
    going = Going(rows, size, filled, taken_out - began, counted_off - taken_out, drop, pages, step, left)
    return going, others.cells()


async def _tidied(keeper: PostgresBackend, look: psycopg.Connection[Any]) -> None:
    """As the janitors of a few workers do, one after the other."""
    look.execute("UPDATE headrace.duties SET next_at = 0")
    while not await keeper.tidy(_CLAUSE):
        look.execute("UPDATE headrace.duties SET next_at = 0")
        await asyncio.sleep(0.1)
    while (look.execute(_GOING.encode()).fetchone() or (False,))[0]:
        await keeper.tidy(_CLAUSE)
        await asyncio.sleep(0.1)


def wrong(cells: Sequence[Cell]) -> list[str]:
    """Who waited longer than is allowed."""
    usual = {cell.call: cell.p99 for cell in cells if cell.phase == "before"}
    return [
        f"{cell.call}, {cell.phase}: p99 {cell.p99:.0f} ms, before {usual[cell.call]:.0f} ms"
        for cell in cells
        if cell.p99 > max(FACTOR * usual[cell.call], BOUND)
    ]


def table(going: Going, cells: Sequence[Cell]) -> str:
    """What people read."""
    rows: list[Sequence[str]] = [("while", "call", "calls", "p50 ms", "p99 ms", "most ms")]
    for name in _CALLS:
        for c in cells:
            if c.call == name:
                rows.append((c.phase, c.call, f"{c.calls:,}", shown(c.p50), shown(c.p99), shown(c.most)))
    summary = (
        f"{going.rows:,} jobs, {going.size / 1e9:.1f} GB, filled in {going.filled:.0f} s: taken out after "
        f"{going.taken_out:.2f} s by one statement of {going.drop:.0f} ms and {going.pages:,} pages, "
        f"counted off in {going.counted_off:.0f} s by steps of at most {going.step:.0f} ms; "
        f"{going.left / 1e9:.2f} GB are left"
    )
    return "\n".join([*aligned(rows), "", summary])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.drop", description=__doc__)
    parser.add_argument("--rows", type=int, action="append", help="may be repeated; default: a million, and fifty")
    parser.add_argument("--quick", action="store_true", help="a small day, to see that it works")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    sizes, seconds = ([20_000], 1.0) if given.quick else (given.rows or SIZES, 20.0)
    found: list[dict[str, Any]] = []
    bad: list[str] = []
    with Servers(None, None) as servers:
        for rows in sizes:
            with fresh("postgres", servers, kind="large") as at:
                going, cells = asyncio.run(measure(servers.postgres("large"), at.url, at.database, rows, seconds))
            print(table(going, cells), flush=True)
            bad += wrong(cells)
            told = [asdict(going), *[asdict(cell) for cell in cells]]
            found += [one | {"rows": rows, "kind": f"drop, {rows:,}"} for one in told]
    keep(given.output, "postgres", facts(Path(tempfile.gettempdir())), found)
    print("\n".join(bad) or "nobody waited much longer than usual")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
