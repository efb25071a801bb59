"""From where on COPY pays: the same rows stored by arrays and by COPY.

``python -m benchmarks.studies.copying`` takes about two minutes; ``--quick`` a few seconds, which says little. What
counts is the CPU time of the server and of this process: a busy machine changes it less than seconds on the clock.
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

from benchmarks.fleet import Servers
from benchmarks.machine import Cores, facts, on_core
from benchmarks.postgres_server import PostgresServer
from benchmarks.results import HOME, aligned, shown
from benchmarks.server import STORES
from headrace.backends.postgres import PostgresBackend, bulk
from headrace.core.clock import SystemClock
from headrace.core.ids import IdMaker, seeded_by_system
from headrace.seam.records import Row

OUTPUT = HOME / "copying.jsonl"
WAYS = ("arrays", "copy")
_NEVER = sys.maxsize


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    sizes: tuple[int, ...] = (200, 1_000, 4_500)
    batches: tuple[int, ...] = (100, 1_000)
    bytes: int = 8_000_000
    times: int = 5


QUICK = Plan(sizes=(200,), batches=(100,), bytes=40_000, times=1)


@dataclass(frozen=True)
class Cell:
    """One way to store batches of one kind; microseconds per row, medians."""

    size: int
    batch: int
    way: str
    server: float
    client: float
    wall: float


async def measure(server: PostgresServer, url: str, plan: Plan) -> list[Cell]:
    """Both ways in turns, for every size and batch."""
    cells: list[Cell] = []
    backend = PostgresBackend(url, listen=False)
    await backend.open()
    ids = IdMaker(SystemClock(), seeded_by_system())
    before = bulk.THRESHOLD
    try:
        for size in plan.sizes:
            for batch in plan.batches:
                rounds: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
                for _ in range(plan.times):
                    for way in WAYS:
                        bulk.THRESHOLD = 0 if way == "copy" else _NEVER
                        count = max(1, plan.bytes // (size * batch))
                        batches = [[_row(ids, size) for _ in range(batch)] for _ in range(count)]
                        rounds[way].append(await _store(backend, server, batches))
                for way, found in rounds.items():
                    cells.append(
                        Cell(size, batch, way, *[statistics.median(part) for part in zip(*found, strict=True)])
                    )
    finally:
        bulk.THRESHOLD = before
        await backend.close()
    return cells


def _row(ids: IdMaker, size: int) -> Row:
    return Row(id=ids.new(), queue="q", task="app.task", cells={"parameters": os.urandom(size)})


async def _store(
    backend: PostgresBackend, server: PostgresServer, batches: Sequence[Sequence[Row]]
) -> tuple[float, float, float]:
    served, used, began = server.cpu(), time.process_time(), time.perf_counter()
    for batch in batches:
        await backend.insert(batch)
    spent = (server.cpu() - served, time.process_time() - used, time.perf_counter() - began)
    rows = sum(map(len, batches))
    return spent[0] / rows * 1e6, spent[1] / rows * 1e6, spent[2] / rows * 1e6


def table(cells: Sequence[Cell]) -> str:
    """The cells for people."""
    rows: list[Sequence[str]] = [("bytes", "batch", "way", "server us/row", "client us/row", "wall us/row")]
    rows += [
        (f"{c.size:,}", f"{c.batch:,}", c.way, shown(c.server), shown(c.client), shown(c.wall)) for c in cells
    ]  # fmt: skip
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.copying", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--place", type=Path, help="where the server's files are; must be a disk, not memory")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    cores = Cores.pick()
    with (
        Servers(given.place, cores.other) as servers,
        tempfile.TemporaryDirectory() as folder,
        on_core(cores.measured),
    ):
        server = servers.postgres()
        with server.databases(Path(folder)):
            url = Path(folder, f"{STORES[0]}.url").read_text()
            cells = asyncio.run(measure(server, url, QUICK if given.quick else Plan()))
    machine = facts(given.place or Path(tempfile.gettempdir()))
    lines = [{"kind": "run", "machine": machine}, *[{"kind": "cell", **asdict(cell)} for cell in cells]]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    print(table(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
