"""What a job of the reference load (4.5 KB) costs each store: bytes of its log, CPU time of its server, calls. From
these, what 162 million jobs a day cost, which is a load that one system of this kind reports.

``python -m benchmarks.studies.cost`` takes a minute or two, ``--jobs 500`` some seconds. Bytes and calls are exact; CPU
time depends on the machine. *objects*: the sections are in an object store, and the store has a reference for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from servers.postgres import Postgres
from servers.valkey import Valkey

from benchmarks.machine import facts
from benchmarks.results import HOME, aligned, shown
from benchmarks.studies import streams
from headrace.api.connection import open_backend

OUTPUT = HOME / "cost.jsonl"
A_DAY = 162_000_000
_DAY = 86_400
STORES = ("sqlite", "postgres", "valkey", "streams")
KINDS = ("reference", "objects")


@dataclass(frozen=True)
class Cost:
    """Of one job, from its enqueue to its end."""

    store: str
    kind: str
    log: float
    """Bytes that the store writes to its log."""
    cpu: float
    """Microseconds of the server's CPU; of the own process, where there is no server."""
    calls: float
    """Transactions of PostgreSQL and scripts of Valkey, in batches of 100 jobs."""


async def _run(url: str, kind: str, jobs: int) -> None:
    backend = open_backend(url)
    await backend.open()
    try:
        await streams.store_jobs(backend, jobs, kind)
        await streams.drain(backend, jobs)
    finally:
        await backend.close()


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _written() -> int:
    """Bytes that this process has written, to whatever file."""
    told = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in told if line.startswith("wchar:")).split()[1])


def _transactions(bench: streams.Bench) -> int:
    with psycopg.connect(bench.postgres_url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        row = connection.execute("SELECT sum(xact_commit) FROM pg_stat_database WHERE datname IS NOT NULL").fetchone()
    assert row is not None
    return int(row[0])


def _scripts(bench: streams.Bench) -> int:
    told = bench.valkey.info("commandstats")
    named = [told[name] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in told]
    return sum(int(line.split(",")[0].removeprefix("calls=")) for line in named)


def measure(store: str, kind: str, jobs: int, bench: streams.Bench, place: Path) -> Cost:
    """Store and run jobs; one before, so that what is made once does not count."""
    log: Callable[[], float]
    cpu: Callable[[], float]
    match store:
        case "sqlite":
            url, log, cpu = f"sqlite:///{place}/{kind}.db", _written, _own_cpu
        case "valkey":
            bench.valkey.call("FLUSHALL")
            url, cpu = bench.valkey.url(), bench.valkey_cpu
            log = lambda: float(bench.valkey.info("persistence")["aof_current_size"])  # noqa: E731
        case _:
            url, log = bench.url(store), bench.wal
            cpu = lambda: bench.cpu() + (bench.valkey_cpu() if store == "streams" else 0)  # noqa: E731
    asyncio.run(_run(url, kind, 1))
    before = log(), cpu(), _transactions(bench), _scripts(bench)
    asyncio.run(_run(url, kind, jobs))
    after = log(), cpu(), _transactions(bench), _scripts(bench)
    spent, used, transactions, scripts = ((late - early) / jobs for early, late in zip(before, after, strict=True))
    calls = {"sqlite": 0.0, "postgres": transactions, "valkey": scripts}.get(store, transactions + scripts)
    return Cost(store, kind, spent, used * 1e6, calls)


def table(costs: Sequence[Cost]) -> str:
    """For people: of one job, and of a day."""
    rows: list[Sequence[str]] = [
        ("store", "sections", "log B/job", "CPU us/job", "log GB/day", "MB/s", "cores", "calls/s")
    ]
    for one in costs:
        a_second = A_DAY / _DAY
        figures = (one.log, one.cpu, one.log * A_DAY / 1e9, one.log * a_second / 1e6, one.cpu * a_second / 1e6)
        rows.append((one.store, one.kind, *map(shown, (*figures, one.calls * a_second))))
    return "\n".join(aligned(rows))


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.cost", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    postgres = Postgres(None, {"full_page_writes": "off"})
    valkey = Valkey(settings={"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"})
    try:
        postgres.start()
        valkey.start()
        bench = streams.Bench(postgres, valkey)
        with tempfile.TemporaryDirectory() as place:
            costs = [measure(store, kind, given.jobs, bench, Path(place)) for store in STORES for kind in KINDS]
    finally:
        valkey.close()
        postgres.close()
    lines: list[dict[str, object]] = [
        {"kind": "run", "machine": facts(Path(tempfile.gettempdir())), "jobs": given.jobs}
    ]
    lines += [
        {"kind": "cost", "sections": one.kind, **{k: v for k, v in asdict(one).items() if k != "kind"}} for one in costs
    ]
    given.output.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    print(table(costs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
