"""Claims on PostgreSQL while days are made and dropped: with nothing in the way, beside a transaction left open over
two midnights, beside jobs with ids of every day of the next ten years, and while every sweep fails.

``python -m benchmarks.studies.days`` takes some minutes; ``--quick`` one. Time passes for the days only, half an hour
with each run, and over two midnights each time. The 99th percentile of a claim is to be at most twice that of claims
with nothing in the way. There are always to be two weeks of days ahead, and hardly any that are over: what is not made
and dropped beside the open transaction, is so after it.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.metrics.metric import percentile
from benchmarks.results import HOME, aligned
from benchmarks.studies.stores import fresh, keep
from headrace.backends.postgres import PostgresBackend
from headrace.errors import HeadraceError
from headrace.seam.records import Claim, JobId, Row, Settlement, SweepClause, SweepTarget
from headrace.types import JobState

OUTPUT = HOME / "days.jsonl"
FACTOR = 2.0
AHEAD = 15
"""Days that there are to be, from today on …"""
OVER = 3
"""… and at most of those before: yesterday may be needed, and one has jobs that never end."""
_OPEN = "a transaction left open"
_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_CLAUSE = [SweepClause(target=SweepTarget.COMPLETED, older_than=_DAY)]
_ROWS = SweepClause(target=SweepTarget.CANCELLED, older_than=_DAY // 2)
"""What goes before a day is over goes row by row, whatever the time of day."""
_BATCH = 1_000
_ENDED = 100
_STRAYS = """
    INSERT INTO headrace.jobs (id, enqueued_at, task, tenant)
    SELECT
        (lpad(to_hex(%s + n %% 3650 * 86400000::bigint), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid,
        0, 't', ''
    FROM generate_series(1, %s) AS n
"""
_BREAK = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'this sweep fails'; END $$;
    CREATE TRIGGER refuse BEFORE DELETE ON headrace.ended FOR EACH STATEMENT EXECUTE FUNCTION public.refuse()
"""
_DAYS = """
    SELECT right(c.relname, 8) FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'headrace.jobs'::regclass AND c.relname ~ '[0-9]{8}$'
"""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    jobs: int = 50_000
    seconds: float = 20.0
    """At least, in each situation …"""
    days: float = 2.5
    """… until so many have passed …"""
    step: float = 0.5
    """… by so many hours at a time."""
    strays: int = 1_000_000


QUICK = Plan(jobs=5_000, seconds=1.0, step=6, strays=5_000)


@dataclass(frozen=True)
class Cell:
    """Claims in one situation."""

    beside: str
    claims: int
    p50: float
    p99: float
    """Milliseconds."""
    passed: float
    """Days that have passed."""
    made: int
    """Days that have a partition at the end."""
    ahead: int
    """Days to come of these, today among them."""
    dropped: int
    """Days that were there and are not any more."""
    failed: int = 0
    """Sweeps."""
    kind: str = "days"


def _id(number: int, at: int) -> JobId:
    return (at // 1_000).to_bytes(6, "big") + bytes.fromhex(f"7000800000{number:010x}")


async def _claim(store: PostgresBackend, seconds: float, beside: asyncio.Task[Any] | None) -> list[float]:
    """How long claims of one job took, in milliseconds; for so long, and while something goes on beside them."""
    took = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until or (beside is not None and not beside.done()):
        await store.claim(Claim("h", ("q",), 1, _DAY))
        took.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(0.002)
    return took


async def _pass_time(store: PostgresBackend, at: int, plan: Plan) -> tuple[int, int]:
    """Let days come and go; when it is then, and how many sweeps have failed."""
    until, last, failed = time.perf_counter() + plan.seconds, at + plan.days * _DAY, 0
    while time.perf_counter() < until or at < last:
        at += int(plan.step * _HOUR)
        await store.tidy(_CLAUSE, at)
        try:
            await store.sweep(_ROWS, at)
        except HeadraceError:
            failed += 1
        await asyncio.sleep(0.05)
    return at, failed


async def _cancel(store: PostgresBackend, at: int) -> None:
    """Jobs that are to be swept a day later."""
    claimed = await store.claim(Claim("h", ("q",), _ENDED, _DAY), at)
    await store.finish([Settlement(job.id, job.epoch, "h", JobState.CANCELLED) for job in claimed.jobs], at)


def _days(connection: psycopg.Connection[Any]) -> set[str]:
    """Those that have a partition, each as a number like 20260102."""
    return {day for [day] in connection.execute(_DAYS)}


async def measure(url: str, plan: Plan) -> list[Cell]:
    """All situations, one after the other, on one store."""
    store, keeper = PostgresBackend(url), PostgresBackend(url)
    await store.open()
    await keeper.open()
    now = time.time_ns() // 1_000
    cells: list[Cell] = []
    with psycopg.connect(url, autocommit=True) as other, psycopg.connect(url) as analysis:

        async def look(beside: str, at: int, *, passes: bool = True) -> int:
            before = _days(other)
            waiting = asyncio.create_task(_pass_time(keeper, at, plan)) if passes else None
            took = await _claim(store, plan.seconds, waiting)
            then, failed = (at, 0) if waiting is None else await waiting
            there = _days(other)
            ahead = sum(day >= time.strftime("%Y%m%d", time.gmtime(then / 1e6)) for day in there)
            cells.append(
                Cell(beside, len(took), percentile(took, 0.5), percentile(took, 0.99), (then - at) / _DAY, len(there),
                     ahead, len(before - there), failed)
            )  # fmt: skip
            return then

        await keeper.tidy(_CLAUSE, now)
        for start in range(0, plan.jobs, _BATCH):
            await store.insert([Row(_id(n, now), "q", "t", {}) for n in range(start, start + _BATCH)])
        await look("nothing", now, passes=False)
        at = await look("days that come and go", now)
        analysis.execute("SELECT count(*) FROM headrace.jobs")
        analysis.execute("SELECT count(*) FROM headrace.ended")
        at = await look(_OPEN, at)
        analysis.rollback()
        other.execute(_STRAYS, ((at + 16 * _DAY) // 1_000, plan.strays))
        at = await look(f"{plan.strays:,} ids of ten years to come", at + 2 * _HOUR)
        await _cancel(store, at)
        other.execute(_BREAK.encode())
        await look("sweeps that fail", at + 2 * _DAY)
    await store.close()
    await keeper.close()
    return cells


def table(cells: Sequence[Cell]) -> str:
    """What people read."""
    head = ["beside", "claims", "p50", "p99", "days passed", "days there", "ahead", "dropped", "sweeps failed"]
    rows = [
        [
            cell.beside,
            str(cell.claims),
            f"{cell.p50:.1f} ms",
            f"{cell.p99:.1f} ms",
            f"{cell.passed:.1f}",
            str(cell.made),
            str(cell.ahead),
            str(cell.dropped),
            str(cell.failed),
        ]
        for cell in cells
    ]
    return "\n".join(aligned([head, *rows]))


def wrong(cells: Sequence[Cell]) -> list[str]:
    """What is not as it is to be."""
    found = []
    for cell in cells:
        if cell.p99 > FACTOR * cells[0].p99:
            found.append(f"{cell.beside}: p99 is {cell.p99 / cells[0].p99:.1f} times")
        if 0 < cell.passed < 2:
            found.append(f"{cell.beside}: only {cell.passed:.1f} days have passed")
        waits = math.ceil(cell.passed) if cell.beside == _OPEN else 0
        if cell.ahead < AHEAD - waits:
            found.append(f"{cell.beside}: only {cell.ahead} days are ahead")
        if cell.made - cell.ahead > OVER + waits:
            found.append(f"{cell.beside}: {cell.made - cell.ahead} days are over and not dropped")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.days", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    with Servers(None, None) as servers, fresh("postgres", servers) as store:
        cells = asyncio.run(measure(store.url, QUICK if given.quick else Plan()))
    print(table(cells))
    told = wrong(cells)
    print("\n".join(told) or "nothing makes claims wait, and days come and go")
    keep(given.output, "postgres", facts(Path(tempfile.gettempdir())), [asdict(cell) for cell in cells])
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
