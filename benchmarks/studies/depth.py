"""A queue of limited depth: what it costs to read its depth and to be refused, and how far over it a rush can get.

``python -m benchmarks.studies.depth`` takes a few minutes on one store, and some more with the ten million rows that
only PostgreSQL gets (``--deepest``); ``--quick`` a few seconds, which says little.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.metrics.metric import percentile
from benchmarks.postgres_server import PostgresServer
from benchmarks.results import HOME, aligned, shown
from benchmarks.sql import read
from benchmarks.studies import rush
from benchmarks.studies.stores import STORES, Fresh, fresh, keep
from headrace import App
from headrace.seam.protocol import Backend
from headrace.seam.records import InsertStatus, Row

OUTPUT = HOME / "depth.jsonl"
QUEUE = "deep"
DEPTHS = (10_000, 1_000_000)
DEEPEST = 10_000_000
_SEEDS = 10_000
"""Jobs that come in by the front door, and are then copied."""
_CHUNK = 1_000
_CALLS = 101
_WARM = 3
_BYTES = 1_200
"""Of the disk that a waiting job takes up, its part in the log included, at most."""


@dataclass(frozen=True)
class Cell:
    """A queue of one depth. Milliseconds, of so many calls."""

    depth: int
    calls: int
    stats: float
    stats_p99: float
    refused: float
    refused_p99: float
    """One row, which is answered FULL."""
    crowd: float
    """A thousand of them at once."""
    admitted: float
    """One row, where there is still room."""


def study(store: str, servers: Servers, depths: Sequence[int], calls: int, place: Path | None = None) -> list[Cell]:
    """A fresh store for each depth."""
    cells = []
    for depth in depths:
        room = shutil.disk_usage(place or tempfile.gettempdir()).free
        if room < 2 * depth * _BYTES:
            raise SystemExit(f"{depth:,} jobs need about {depth * _BYTES >> 30} GiB, twice; there are {room >> 30} GiB")
        with fresh(store, servers, place) as at:
            cells.append(asyncio.run(_measure(at, depth, calls)))
    return cells


async def _measure(at: Fresh, depth: int, calls: int) -> Cell:
    app = App(at.url)

    @app.task(name="nothing", queue=QUEUE)
    async def nothing(number: int) -> None: ...

    task: Any = nothing

    def rows(count: int) -> list[Row]:
        return [app.client.packer.pack(task.job(number)) for number in range(count)]

    async with app:
        backend = await app.client.backend()
        await _fill(backend, at, depth, rows)
        at.settle()
        await app.policies.set(QUEUE, depth=depth)
        stats = await _timed(backend.stats, calls)
        refused = await _timed(lambda: _insert(backend, rows(1), InsertStatus.FULL), calls)
        crowd = await _timed(lambda: _insert(backend, rows(_CHUNK), InsertStatus.FULL), calls // 10 + 1)
        await app.policies.set(QUEUE, depth=2 * depth)
        admitted = await _timed(lambda: _insert(backend, rows(1), InsertStatus.NEW), calls)
        [queue] = (await backend.stats()).queues
        if queue.available != depth + _WARM + calls:
            raise RuntimeError(f"expected {depth + _WARM + calls} waiting jobs, but there are {queue.available}")
    return Cell(
        depth,
        calls,
        statistics.median(stats),
        percentile(stats, 0.99),
        statistics.median(refused),
        percentile(refused, 0.99),
        statistics.median(crowd),
        statistics.median(admitted),
    )


async def _fill(backend: Backend, at: Fresh, depth: int, rows: Callable[[int], list[Row]]) -> None:
    """By the front door; in PostgreSQL, where that would take too long, by copies of what came in by it."""
    copied = isinstance(at.server, PostgresServer) and depth > _SEEDS
    wanted = _SEEDS if copied else depth
    while wanted:
        wanted -= len(await backend.insert(rows(min(_CHUNK, wanted))))
    if copied:
        assert isinstance(at.server, PostgresServer)
        await asyncio.to_thread(_copy, at.server, at.database, depth // _SEEDS - 1)


def _copy(server: PostgresServer, database: str, times: int) -> None:
    """All waiting jobs, so many times more."""
    from psycopg.sql import SQL, Identifier, Literal

    said = {name: SQL(text) for name, text in read("copies").items()}
    comma = SQL(", ")
    with server.connect(database) as connection:
        connection.execute(said["draw"].format(times=Literal(times)))
        for table in ("jobs", "ready"):
            found = connection.execute(said["columns"], {"name": f"headrace.{table}"}).fetchall()
            names = [Identifier(name) for (name,) in found]
            seeds = [Identifier("s", name) for (name,) in found]
            parts = {"columns": comma.join(names), "columns_of_seed": comma.join(seeds)}
            connection.execute(said["copy"].format(table=Identifier("headrace", table), **parts))
        connection.execute(said["count"])
        connection.execute(said["drop"])
        connection.execute(SQL("ANALYZE"))


async def _insert(backend: Backend, rows: Sequence[Row], status: InsertStatus) -> None:
    answers = await backend.insert(rows)
    if any(answer.status is not status for answer in answers):
        raise RuntimeError(f"expected every row to be {status.value}, got {answers[0]}")


async def _timed(call: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Milliseconds of each call, after a few that do not count."""
    for _ in range(_WARM):
        await call()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def table(cells: Sequence[Cell]) -> str:
    """The cells for people."""
    rows: list[Sequence[str]] = [
        ("waiting", "stats ms", "p99", "refused ms", "p99", "1,000 refused ms", "admitted ms"),
    ]
    for c in cells:
        numbers = (c.stats, c.stats_p99, c.refused, c.refused_p99, c.crowd, c.admitted)
        rows.append((f"{c.depth:,}", *map(shown, numbers)))
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.depth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--store", choices=STORES, action="append", help="may be repeated; default: postgres")
    parser.add_argument("--deepest", action="store_true", help="ten million rows too, in PostgreSQL")
    parser.add_argument("--place", type=Path, help="where the stores are; must be a disk, not memory")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    for store in given.store or STORES[:1]:
        deepest = (DEEPEST,) if given.deepest and store == "postgres" else ()
        depths, calls, plan = ((200,), 3, rush.QUICK) if given.quick else ((*DEPTHS, *deepest), _CALLS, rush.Plan())
        with Servers(given.place, None) as servers:
            rushed = rush.study(store, servers, plan, given.place)
            print(
                f"{store}: {plan.producers} producers against {plan.workers} workers\n{rush.table(rushed)}\n",
                flush=True,
            )
            cells = study(store, servers, depths, calls, given.place)
            print(f"{store}: the depth read, and rows refused\n{table(cells)}\n", flush=True)
        lines: list[dict[str, object]] = [{"kind": "rush", **asdict(each), "over": each.over} for each in rushed]
        lines += [{"kind": "depth", **asdict(cell)} for cell in cells]
        keep(given.output, store, facts(given.place or Path(tempfile.gettempdir())), lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
