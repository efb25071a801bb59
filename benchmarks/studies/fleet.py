"""A fleet of workers on one PostgreSQL: what they ask of it while there is nothing to do, and what one job costs that
comes alone.

``python -m benchmarks.studies.fleet`` takes eleven minutes and 6 GB of memory; ``--quick`` half a minute. A worker has
all that a worker process has, connections and heartbeat included, but a few processes share all of them:
``--crew URL WORKERS POLL`` is one of these. Workers are connected to the server, or through a
pooler in transaction mode with few sessions. What counts is counted by the server. A job that comes alone is to cost
at most three claims, however many workers there are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servers.pooler import Pooler

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.metrics.metric import percentile
from benchmarks.postgres_server import PostgresServer
from benchmarks.results import HOME, aligned, shown
from benchmarks.studies.stores import fresh, keep
from headrace import App, Job

OUTPUT = HOME / "fleet.jsonl"
SESSIONS = 20
"""Of the pooler, on the server."""
_QUEUE = "fleet"
_PATIENCE = 180.0
HERD = 3.0
"""Claims that a job may cause which comes alone."""
_COUNTS = """
    SELECT
        coalesce(sum(s.calls) FILTER (WHERE s.toplevel), 0)::bigint,
        coalesce(sum(s.calls) FILTER (WHERE s.toplevel AND s.query ~ 'claim_v1\\('), 0)::bigint,
        coalesce(sum(s.calls) FILTER (WHERE s.query ~ '^SELECT [^;]*pg_notify\\('), 0)::bigint
    FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
    WHERE d.datname = %(name)s
"""
_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = %(name)s AND backend_type = 'client backend'"


@dataclass(frozen=True)
class Fleet:
    """So many workers, in so many processes."""

    workers: int
    processes: int
    pooled: bool = False
    poll: str = "250ms"
    """How often they look for jobs where nobody tells them, which is behind a pooler."""

    @property
    def name(self) -> str:
        return f"pooler, poll_blind {self.poll}" if self.pooled else "direct"


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    fleets: Sequence[Fleet] = (
        Fleet(1, 1),
        Fleet(24, 1),
        Fleet(100, 2),
        Fleet(24, 1, True),
        Fleet(400, 4, True, "10s"),
    )
    rest: float = 20.0
    """Seconds until a fleet has come to rest: by then its workers know of each other."""
    idle: float = 60.0
    """Seconds: retention takes its turn once in them, and connections that are not needed go."""
    jobs: int = 50
    rate: float = 2.0
    """A second."""
    listeners: Sequence[int] = (1, 24, 100, 400)
    rings: int = 200


QUICK = Plan((Fleet(2, 1), Fleet(6, 2), Fleet(6, 2, True)), 3.0, 3.0, 6, 2.0, (1, 10), 20)


@dataclass(frozen=True)
class Cell:
    """One fleet."""

    workers: int
    way: str
    most: float
    """Connections of each worker, with the server or with the pooler, after its start …"""
    connections: float
    """… and at rest."""
    sessions: int
    """That the server has at rest, in all."""
    statements: float
    """A second, of each worker, while there is nothing to do."""
    idle_cpu: float
    """Seconds of the server's CPU, a second."""
    jobs: int
    claims: float
    """For each job that comes alone, beyond those of idleness."""
    notes: float
    """NOTIFY statements for each of them. Each one wakes everybody who listens."""
    p50: float
    p99: float
    """Milliseconds until its handler runs."""
    kind: str = "fleet"


@dataclass(frozen=True)
class Bell:
    """What it costs the server to wake so many who listen."""

    listeners: int
    cpu: float
    """Milliseconds, for each NOTIFY."""
    kind: str = "fleet, bell"


@dataclass
class Counts:
    """What the server has been sent so far, and what it has worked."""

    statements: int
    claims: int
    notes: int
    cpu: float
    at: float

    @classmethod
    def now(cls, server: PostgresServer, database: str) -> Counts:
        [[statements, claims, notes]] = server.ask(_COUNTS, {"name": database})
        return cls(statements, claims, notes, server.cpu(), time.perf_counter())


def measure(server: PostgresServer, url: str, database: str, fleet: Fleet, plan: Plan) -> Cell:
    """Let a fleet idle, and then give it a job now and then."""
    with _way(url, database, fleet) as (way, pooler), _crew(way, fleet) as crew:
        asyncio.run(_gathered(url, fleet.workers))
        time.sleep(plan.rest)
        most, _ = _connections(server, database, pooler)
        first = Counts.now(server, database)
        time.sleep(plan.idle)
        second = Counts.now(server, database)
        clients, sessions = _connections(server, database, pooler)
        asyncio.run(_trickle(url, plan))
        third = Counts.now(server, database)
        for worker in crew:
            worker.stdin.close()
        waits = [wait for worker in crew for wait in json.loads(worker.stdout.read().splitlines()[-1])]
    if len(waits) != plan.jobs:
        raise RuntimeError(f"expected {plan.jobs} jobs to be run, but {len(waits)} were")
    seconds = second.at - first.at
    idle, looks = (second.cpu - first.cpu) / seconds, (second.claims - first.claims) / seconds
    return Cell(
        fleet.workers,
        fleet.name,
        most / fleet.workers,
        clients / fleet.workers,
        sessions,
        (second.statements - first.statements) / seconds / fleet.workers,
        idle,
        plan.jobs,
        (third.claims - second.claims - looks * (third.at - second.at)) / plan.jobs,
        (third.notes - second.notes) / plan.jobs,
        percentile(waits, 0.5) * 1e3,
        percentile(waits, 0.99) * 1e3,
    )


def ring(server: PostgresServer, database: str, listeners: int, times: int) -> Bell:
    """Wake all who listen on one channel, so many times. Who they are does not count, only that they hear."""
    with ExitStack() as stack:
        connections = [stack.enter_context(server.connect(database)) for _ in range(listeners)]
        for each in connections:
            each.execute("LISTEN bell")
        caller = stack.enter_context(server.connect(database))
        before = server.cpu()
        for number in range(times):
            caller.execute(f"NOTIFY bell, '{number}'".encode())
            for each in connections:
                next(iter(each.notifies(stop_after=1, timeout=_PATIENCE)))
        return Bell(listeners, (server.cpu() - before) / times * 1e3)


def _connections(server: PostgresServer, database: str, pooler: Pooler | None) -> tuple[int, int]:
    """Those of the workers, and those that the server has."""
    [[sessions]] = server.ask(_CONNECTIONS, {"name": database})
    return sessions if pooler is None else pooler.clients, sessions


@contextmanager
def _way(url: str, database: str, fleet: Fleet) -> Iterator[tuple[str, Pooler | None]]:
    if not fleet.pooled:
        yield url, None
        return
    pooler = Pooler(urlsplit(url).port or 5432, size=SESSIONS, database=database)
    try:
        yield f"{pooler.url()}?pooled=yes", pooler
    finally:
        pooler.close()


@contextmanager
def _crew(url: str, fleet: Fleet) -> Iterator[list[Any]]:
    command = [sys.executable, "-m", "benchmarks.studies.fleet", "--crew", url]
    shares = [len(range(number, fleet.workers, fleet.processes)) for number in range(fleet.processes)]
    started: list[Any] = [
        subprocess.Popen(
            [*command, str(share), fleet.poll],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for share in shares
    ]
    try:
        yield started
        if any(worker.wait(_PATIENCE) for worker in started):
            raise RuntimeError("some workers came to a bad end")
    finally:
        for worker in started:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
            worker.stdout.close()


async def _gathered(url: str, workers: int) -> None:
    """Return when all of them are there, and what a new store needs once is done."""
    async with App(url) as app, asyncio.timeout(_PATIENCE):
        backend: Any = await app.client.backend()
        await backend.tidy([])
        while len((await app.client.stats()).workers) < workers:
            await asyncio.sleep(0.5)


async def _trickle(url: str, plan: Plan) -> None:
    """Jobs come alone, and are run."""
    app = App(url)
    _handler(app, [])
    async with app:
        for _ in range(plan.jobs):
            await app.enqueue_named("nothing", {})
            await asyncio.sleep(1 / plan.rate)
        async with asyncio.timeout(_PATIENCE):
            while any(queue.available + queue.running for queue in (await app.client.stats()).queues):
                await asyncio.sleep(0.1)


def _handler(app: App, waits: list[float]) -> None:
    @app.task(name="nothing", queue=_QUEUE)
    async def nothing(job: Job[Any]) -> None:
        waits.append(time.time() - job.run_at.timestamp())


async def crew(url: str, workers: int, poll: str) -> list[float]:
    """So many workers, until nothing more comes from whoever started this: how long their jobs have waited."""
    waits: list[float] = []
    logging.getLogger("headrace").setLevel(logging.ERROR)  # that a crowd on few cores is slow is no news
    async with AsyncExitStack() as stack:
        apps = [App(url, worker={"name": "random", "poll_blind": poll}) for _ in range(workers)]
        for app in apps:
            _handler(app, waits)
            await stack.enter_async_context(app)
        working = [asyncio.ensure_future(app.work()) for app in apps]
        await asyncio.to_thread(sys.stdin.read)
        for app in apps:
            app.stop()
        await asyncio.gather(*working)
    return waits


def wrong(cells: Sequence[Cell]) -> list[str]:
    """Fleets that come in a herd."""
    return [f"{c.workers} workers, {c.way}: {c.claims:.1f} claims a job" for c in cells if c.claims > HERD]


def table(cells: Sequence[Cell], bells: Sequence[Bell]) -> str:
    """The cells for people."""
    head = (
        "workers", "way", "connections each", "at rest", "sessions", "statements/s each", "idle CPU", "claims/job",
        "NOTIFY/job", "p50 ms", "p99 ms",
    )  # fmt: skip
    rows: list[Sequence[str]] = [head]
    for c in cells:
        figures = (c.statements, c.idle_cpu, c.claims, c.notes, c.p50, c.p99)
        connections = (f"{c.most:.1f}", f"{c.connections:.1f}", str(c.sessions))
        rows.append((str(c.workers), c.way, *connections, *map(shown, figures)))
    woken: list[Sequence[str]] = [("listeners", "CPU ms/NOTIFY"), *[(str(b.listeners), shown(b.cpu)) for b in bells]]
    return "\n".join([*aligned(rows), "", *aligned(woken)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.fleet", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small fleets, to see that it works")
    parser.add_argument("--crew", nargs=3, metavar=("URL", "WORKERS", "POLL"), help="be some of the workers")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    if given.crew:
        url, workers, poll = given.crew
        print(json.dumps(asyncio.run(crew(url, int(workers), poll))))
        return 0
    plan = QUICK if given.quick else Plan()
    cells, bells = [], []
    with Servers(None, None) as servers:
        for listeners in plan.listeners:
            with fresh("postgres", servers, kind="large") as at:
                bells.append(ring(servers.postgres("large"), at.database, listeners, plan.rings))
        for fleet in plan.fleets:
            with fresh("postgres", servers, kind="large") as at:
                cells.append(measure(servers.postgres("large"), at.url, at.database, fleet, plan))
    print(table(cells, bells))
    found = [*[asdict(cell) for cell in cells], *[asdict(bell) for bell in bells]]
    keep(given.output, "postgres", facts(Path(tempfile.gettempdir())), found)
    print("\n".join(wrong(cells)) or "no herd comes")
    return 1 if wrong(cells) else 0


if __name__ == "__main__":
    sys.exit(main())
