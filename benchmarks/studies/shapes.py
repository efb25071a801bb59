"""How jobs should lie in PostgreSQL: the same claims and completions on four sets of tables.

``python -m benchmarks.studies.shapes`` takes about ten minutes; ``--quick`` a few seconds, which says little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.machine import Cores, facts, on_core
from benchmarks.metrics.metric import percentile
from benchmarks.postgres_server import PostgresServer
from benchmarks.results import HOME, aligned, shown
from benchmarks.server import STORES
from benchmarks.sql import connected, micros, read
from benchmarks.systems.log import Log

OUTPUT = HOME / "shapes.jsonl"
SHAPES = ("lease_rows", "one_row", "hot_row", "batch_lease")
_CHUNK = 1_000


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    depths: tuple[int, ...] = (10_000, 1_000_000)
    batches: tuple[int, ...] = (1, 10, 100, 1_000)
    seconds: float = 1.5
    times: int = 3
    churn: int = 50_000
    """Jobs that come and go under a held snapshot before anything is measured."""


QUICK = Plan(depths=(2_000,), batches=(1, 100), seconds=0.05, times=1, churn=2_000)


@dataclass(frozen=True)
class Cell:
    """One shape in one situation."""

    shape: str
    depth: int
    held: bool
    batch: int
    rates: Sequence[float]
    """Jobs claimed and completed per second, of which the median counts."""
    claim_p99: float
    """Milliseconds."""
    log: float
    """Bytes per job in the server's log."""
    dead: int
    """Dead rows when it was over, in all tables."""
    relations: int
    """Bytes of all tables and indexes when it was over."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


class Shape:
    """One set of tables in a database of its own, with a queue that keeps its depth."""

    def __init__(self, url: str, name: str, depth: int) -> None:
        self._sql = read(f"shape_{name}")
        self._connection = connected(url, f"shape_{name}")
        self._connection.execute("CREATE EXTENSION pgstattuple", prepare=False)
        self._log = Log(self._connection)
        self._name, self._depth = name, depth
        self._waiting = self._number = 0
        self.top_up()

    def measure(self, plan: Plan, batch: int, *, held: bool) -> Cell:
        """Claims and completions of one size, in turns with inserts that do not count."""
        if held:
            self._work(min(_CHUNK, self._depth // 2), count=plan.churn)
        rates: list[float] = []
        claims: list[float] = []
        logged = jobs = 0
        self._work(batch, count=batch)
        for _ in range(plan.times):
            done = self._work(batch, seconds=plan.seconds)
            rates.append(done.jobs / done.seconds)
            claims += done.claims
            logged, jobs = logged + done.log, jobs + done.jobs
        return Cell(
            shape=self._name,
            depth=self._depth,
            held=held,
            batch=batch,
            rates=rates,
            claim_p99=percentile(claims, 0.99) * 1e3,
            log=logged / jobs,
            dead=self._dead(),
            relations=self._log.relations(),
        )

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def clean(self) -> None:
        """As good as new."""
        self.top_up()
        self._connection.execute("VACUUM ANALYZE", prepare=False)

    def top_up(self) -> None:
        """As deep as it should be."""
        while self._waiting < self._depth:
            count = min(self._depth - self._waiting, 10 * _CHUNK)
            self._connection.execute(self._sql["insert"], {"count": count, "now": micros()})
            self._waiting += count

    def _work(self, batch: int, *, count: int = sys.maxsize, seconds: float = 3_600.0) -> Done:
        """So many jobs, or for so long."""
        claim, finish = self._sql["claim"].format(batch=batch), self._sql["done"]
        done = Done()
        while done.jobs < count and done.seconds < seconds:
            self.top_up()
            with self._log.part("work"):
                for _ in range(max(1, min(_CHUNK, self._depth // 2) // batch)):
                    self._number += 1
                    start = time.perf_counter()
                    given = {"now": micros(), "number": self._number}
                    rows = self._connection.execute(claim, given, binary=True).fetchall()
                    claimed = time.perf_counter()
                    ended = self._connection.execute(finish, {"ids": [row[0] for row in rows], "number": self._number})
                    done.add(len(rows), claimed - start, time.perf_counter() - start)
                    self._waiting -= len(rows)
                    if len(rows) != batch or ended.rowcount != batch:
                        raise RuntimeError(f"{self._name}: {len(rows)} claimed, {ended.rowcount} ended, not {batch}")
                    if done.jobs >= count or done.seconds >= seconds:
                        break
            done.log += self._log.parts["work"]
        return done

    def _dead(self) -> int:
        query = """
            SELECT sum((pgstattuple(c.oid)).dead_tuple_count)::bigint FROM pg_class AS c
            WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
        """
        [[found]] = self._connection.execute(query).fetchall()
        return int(found)


class Done:
    """What a stretch of work came to."""

    def __init__(self) -> None:
        self.jobs = 0
        self.seconds = 0.0
        self.log = 0
        self.claims: list[float] = []

    def add(self, jobs: int, claim: float, whole: float) -> None:
        self.jobs += jobs
        self.seconds += whole
        self.claims.append(claim)


def study(server: PostgresServer, plan: Plan, shapes: Sequence[str] = SHAPES) -> Iterator[Cell]:
    """Every shape in every situation, each on tables of its own."""
    for depth in plan.depths:
        for name in shapes:
            with (
                tempfile.TemporaryDirectory() as folder,
                server.databases(Path(folder)) as database,
                closing(Shape(Path(folder, f"{STORES[0]}.url").read_text(), name, depth)) as shape,
            ):
                for batch in plan.batches:
                    for held in (False, True):
                        shape.clean()
                        with _snapshot(server, database, held):
                            yield shape.measure(plan, batch, held=held)


@contextmanager
def _snapshot(server: PostgresServer, database: str, held: bool) -> Iterator[None]:
    """A transaction that has looked once and stays, if it is asked for."""
    if not held:
        yield
        return
    with server.connect(database) as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        yield


def table(cells: Sequence[Cell]) -> str:
    """The cells for people."""
    rows: list[Sequence[str]] = [
        ("shape", "depth", "snapshot", "batch", "jobs/s", "claim p99 ms", "log B/job", "dead rows", "MB")
    ]
    for cell in cells:
        rows.append(
            (
                cell.shape,
                f"{cell.depth:,}",
                "held" if cell.held else "–",
                f"{cell.batch:,}",
                shown(cell.rate),
                shown(cell.claim_p99),
                shown(cell.log),
                f"{cell.dead:,}",
                shown(cell.relations / 1e6),
            )
        )
    return "\n".join(aligned(rows))


def write(path: Path, machine: dict[str, Any], cells: Sequence[Cell]) -> None:
    """One JSON object per line: the machine, then each cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = [{"kind": "run", "machine": machine}]
    lines += [{"kind": "cell", **asdict(cell), "rate": cell.rate} for cell in cells]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.shapes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="only these; may be repeated")
    parser.add_argument("--depth", action="append", type=int, help="only these; may be repeated")
    parser.add_argument("--batch", action="append", type=int, help="only these; may be repeated")
    parser.add_argument("--place", type=Path, help="where the server's files are; must be a disk, not memory")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else Plan()
    plan = replace(plan, depths=tuple(given.depth or plan.depths), batches=tuple(given.batch or plan.batches))
    cores = Cores.pick()
    machine = facts(given.place or Path(tempfile.gettempdir()))
    cells: list[Cell] = []
    with Servers(given.place, cores.other) as servers:
        server = servers.postgres("quiet")
        with on_core(cores.measured):
            for cell in study(server, plan, given.shape or SHAPES):
                cells.append(cell)
                print(f"-- {table([cell]).splitlines()[1]}", file=sys.stderr, flush=True)
                write(given.output, machine, cells)
    print(table(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
