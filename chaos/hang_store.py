"""Let the store stand still for longer than a lease, with everybody connected: no living worker loses a job to it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg

from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import dashed, records_of, until_done
from chaos.kill_server import at_work
from chaos.ledger import Ledger, latest
from chaos.load import Load
from chaos.outcome import Outcome
from chaos.stores import PostgresStore, SqliteStore, Store, StreamsStore, ValkeyStore, opened
from chaos.table_locks import lock
from chaos.worker import LEASE, STEP, make_app
from headrace.seam.records import JobId

LONG = 8
"""Jobs that run all the while."""
REST = 1.5
"""Leases between two hangs: all have been renewed by then."""
MAX_LOST = 2
_TABLES = ("leased", "ready", "workers", "queues")

Hang = Callable[[float], AbstractAsyncContextManager[None]]


async def run(
    folder: Path,
    *,
    hangs: int,
    leases: float,
    processes: int,
    seed: int,
    backend: str = "postgres",
    way: str = "stop",
    lease: float = LEASE,
    rate: int = 100,
    budget: float = 600.0,
) -> Outcome:
    """``hangs`` times the store stands still for so many leases, while long jobs run and others come."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    length = hangs * (leases + REST + 1) * lease
    with opened(backend, folder) as store:
        hang = _ways(store)[way]
        app = make_app(store.url, lease=lease)
        async with app:
            fleet = Fleet(
                store.url, ledger_folder, size=processes, seconds=0.01, rng=rng, max_lost=MAX_LOST, lease=lease
            )  # fmt: skip
            load = Load(app, rate)
            walk: Any = app.tasks["walk"]
            jobs = [walk.job(round(length / STEP)) for _ in range(LONG)]
            began = time.monotonic()
            try:
                long = [answer.id for answer in await app.client.insert(jobs)]
                async with asyncio.TaskGroup() as group:
                    producers = load.start(group)
                    for _ in range(hangs):
                        await _everybody_works(ledger_folder, fleet, load)
                        await asyncio.sleep(REST * lease + rng.random() * lease / 6)
                        async with hang(leases * lease):
                            await asyncio.sleep(leases * lease)
                    await _everybody_works(ledger_folder, fleet, load)
                    load.enough = True
                    await asyncio.wait(producers)
                drained = await until_done(app, began + budget)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            ids: list[JobId] = [*long, *load.acknowledged]
            records = await records_of(app, ids)
        integrity = store.integrity()
    ledger = Ledger(ledger_folder)
    found = Findings(ids, records, ledger, asked=load.asked)
    runs = ledger.runs()
    again = sum(runs[dashed(job_id)] - 1 for job_id in long)
    taken, lost = ledger.count("stalled"), ledger.count("lease_lost")
    reached = found.figures() | {
        "hangs": hangs,
        "jobs taken from living workers": taken,
        "leases lost": lost,
        "long jobs that ran again": again,
        "dead letters": found.undone,
        "drained": drained,
        "integrity": integrity,
        "seconds": round(time.monotonic() - began, 1),
        "exit codes": sorted(set(codes)),
    }
    said = (
        (taken, f"{taken} times a job was taken from a worker that lived"),
        (lost, f"{lost} leases were lost though their workers lived"),
        (again, f"{again} times a long job ran again"),
        (integrity != "ok", f"the store's own check says {integrity}"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
    )
    problems = found.problems() + [text for bad, text in said if bad]
    return Outcome(
        scenario=f"hang_store ({way}, {leases:g} leases)",
        backend=store.name,
        asked={"hangs": hangs, "leases each": leases, "processes": processes, "jobs a second": rate, "lease s": lease},
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )


async def _everybody_works(ledger: Path, fleet: Fleet, load: Load) -> None:
    since = time.monotonic_ns()
    deadline = time.monotonic() + _PATIENCE
    while not (at_work(ledger, fleet.pids, since) and load.acknowledges_since(since)):
        if time.monotonic() > deadline:
            last = {kind: latest(ledger, kind) for kind in ("start", "store_away", "store_back")}
            raise TimeoutError(
                f"not everybody works {_PATIENCE:.0f} s after {since}: workers {fleet.pids} told {last}; the store "
                f"took jobs until {load.answers[-1:]}; {fleet.errors()[-2000:]}"
            )
        await asyncio.sleep(0.05)


_PATIENCE = 120.0
WAYS = {"postgres": ("stop", "lock"), "valkey": ("stop", "pause"), "sqlite": ("lock",)} | {
    "streams": ("stop valkey", "stop postgres")
}
"""In which each store is made to stand still."""


def _ways(store: Store) -> dict[str, Hang]:
    match store:
        case PostgresStore():
            return {"stop": lambda _: stopped(store), "lock": lambda _: _locked_tables(store)}
        case ValkeyStore():
            return {"stop": lambda _: stopped(store), "pause": lambda seconds: _paused(store, seconds)}
        case StreamsStore():
            return {"stop valkey": lambda _: stopped(store.gives), "stop postgres": lambda _: stopped(store.keeps)}
        case SqliteStore():
            return {"lock": lambda _: _locked_file(store)}


@asynccontextmanager
async def stopped(store: PostgresStore | ValkeyStore) -> AsyncIterator[None]:
    """SIGSTOP of every process of the server, then SIGCONT."""
    store.server.freeze()
    try:
        yield
    finally:
        store.server.thaw()


@asynccontextmanager
async def _paused(store: ValkeyStore, seconds: float) -> AsyncIterator[None]:
    """The server answers nobody for so long."""
    store.server.call("CLIENT", "PAUSE", round(seconds * 1_000), "ALL")
    yield


@asynccontextmanager
async def _locked_tables(store: PostgresStore) -> AsyncIterator[None]:
    """Somebody locks the tables, as a migration of another program may."""
    async with await psycopg.AsyncConnection.connect(store.url) as connection:
        await lock(connection, *_TABLES)
        yield


@asynccontextmanager
async def _locked_file(store: SqliteStore) -> AsyncIterator[None]:
    """Another program has a transaction open, and writes."""
    connection = apsw.Connection(str(store.path))
    connection.set_busy_timeout(30_000)
    await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("COMMIT")
        connection.close()
