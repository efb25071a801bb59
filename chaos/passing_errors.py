"""Errors of PostgreSQL that pass: work that succeeded is never blamed for them, and nobody has to be started again."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import sql

from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.kill_server import at_work
from chaos.ledger import Ledger, latest
from chaos.load import WEIGHT, Load
from chaos.outcome import Outcome
from chaos.stores import PostgresStore, postgres
from chaos.troubles import SAID, TROUBLES, Server, Trouble
from chaos.worker import LEASE, make_app
from headrace import App, JobState

ROLE = "chaos"
RECOVERED = 5.0
"""Seconds after the end of a trouble within which every worker has to work again."""
MAX_LOST = 20
_PARTS = ("producer", "worker", "janitor", "reader")


class Passed(Struct, frozen=True):
    """A trouble, and what came of it."""

    name: str
    recovery: float | None
    """Seconds from its end until every worker worked and every producer was answered; None: longer than anybody
    waited."""


async def run(
    folder: Path,
    *,
    processes: int,
    seed: int,
    troubles: Sequence[Trouble] = TROUBLES,
    lasting: float = 3.0,
    rate: int = 600,
    seconds: float = 0.01,
    lease: float = LEASE,
    recovered: float = RECOVERED,
    budget: float = 300.0,
) -> Outcome:
    """Enqueue ``rate`` jobs a second while ``processes`` workers run, as many again under a supervisor, and one trouble
    comes after the other, for ``lasting`` seconds each."""
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    with postgres(folder) as store:
        url = store.server.url(user=ROLE)
        owner = make_app(store.url, lease=lease)
        async with owner, await _admin(store) as connection:
            server = await _server(owner, connection)
            app = make_app(url, lease=lease)
            fleet = Fleet(
                url, ledger_folder, size=processes, seconds=seconds, rng=random.Random(seed), max_lost=MAX_LOST,
                lease=lease,
            )  # fmt: skip
            supervisor = _supervise(url, ledger_folder, processes, seconds, lease)
            load = Load(app, rate, heavy=WEIGHT)
            try:
                began = time.monotonic()
                async with app, asyncio.TaskGroup() as group:
                    producers = load.start(group)
                    pids = await _all_there(ledger_folder, 2 * processes)
                    passed = [await _pass(each, server, lasting, ledger_folder, pids, load) for each in troubles]
                    load.enough = True
                    await asyncio.wait(producers)
                drained = await until_done(owner, began + budget)
                crashed = fleet.crashed() + (supervisor.poll() is not None)
            finally:
                supervisor.terminate()
                codes = fleet.stop()
                codes.append(supervisor.wait())
            records = await records_of(owner, list(load.acknowledged))
        integrity, log = store.integrity(), store.server.log()
    ledger = Ledger(ledger_folder)
    found = Findings(list(load.acknowledged), records, ledger, asked=load.asked)
    dead = sum(record is not None and record.state is JobState.FAILED for record in records)
    started_again = len({entry.pid for entry in ledger.entries}) - len(pids)
    late = [each.name for each in passed if each.recovery is None or each.recovery > recovered]
    reached = found.figures() | {
        "dead letters of work that succeeded": dead,
        "workers that ended by themselves": crashed + started_again,
        "seconds until everybody worked again": {each.name: each.recovery for each in passed},
        "errors that the server told": {said: log.count(said) for said in SAID},
        "attempts burnt": found.burnt,
        "enqueues that were given up": load.given_up,
        "enqueues that were refused": len(load.refused),
        "runs that were not the only one of their job": sum(ledger.runs().values()) - len(ledger.runs()),
        "integrity": integrity,
        "drained": drained,
        "seconds": round(time.monotonic() - began, 1),
        "exit codes": sorted(set(codes)),
    }
    said = (
        (dead, f"{dead} jobs whose handlers succeeded are dead letters"),
        (late, f"not everybody worked again {recovered:g} s after: {', '.join(late)}"),
        (load.refused, f"{len(load.refused)} enqueues were refused, the first with {load.refused[:1]}"),
        (crashed + started_again, f"{crashed + started_again} workers ended by themselves: {fleet.errors()[-2000:]}"),
        (integrity != "ok", f"the store's own check says {integrity}"),
        (not drained, "not everything was done in time"),
    )
    problems = found.problems() + [text for bad, text in said if bad]
    return Outcome(
        scenario="passing_errors",
        backend=store.name,
        asked={
            "troubles": [each.__name__ for each in troubles], "seconds each": lasting, "processes": 2 * processes,
            "jobs a second": rate,
        },
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )  # fmt: skip


async def _admin(store: PostgresStore) -> psycopg.AsyncConnection[Any]:
    """A session that none of the troubles is meant for."""
    calm = "-c transaction_timeout=0 -c idle_in_transaction_session_timeout=0 -c statement_timeout=0"
    return await psycopg.AsyncConnection.connect(store.url, autocommit=True, options=calm)


async def _server(owner: App, connection: psycopg.AsyncConnection[Any]) -> Server:
    """The server, with a role for the others that owns nothing."""
    backend: Any = await owner.client.backend()

    async def grant() -> None:
        for part in _PARTS:
            await backend.migrator.grant(part, ROLE)

    await connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(ROLE)))
    await grant()
    return Server(connection, ROLE, grant)


def _supervise(url: str, ledger: Path, processes: int, seconds: float, lease: float) -> subprocess.Popen[bytes]:
    told = {"CHAOS_URL": url, "CHAOS_LEDGER": str(ledger), "CHAOS_SECONDS": str(seconds), "CHAOS_LEASE": str(lease)}
    command = [sys.executable, "-m", "headrace.cli", "worker", "chaos.supervised:app", "--processes", str(processes)]
    with (ledger / "supervisor.txt").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | told, cwd=Path(__file__).parent.parent
        )  # fmt: skip


async def _all_there(ledger: Path, count: int) -> list[int]:
    """The workers, when each has run a job."""
    patience = time.monotonic() + 60.0
    while time.monotonic() < patience:
        if len(pids := list(latest(ledger, "start"))) == count:
            return pids
        await asyncio.sleep(0.05)
    raise RuntimeError(f"expected {count} workers to run jobs within 60 s, got {len(pids)}")


async def _pass(trouble: Trouble, server: Server, lasting: float, ledger: Path, pids: list[int], load: Load) -> Passed:
    await trouble(server, lasting)
    over = time.monotonic_ns()
    recovery = None
    while recovery is None and time.monotonic_ns() < over + 3 * RECOVERED * 1e9:
        await asyncio.sleep(0.05)
        if at_work(ledger, pids, over) and load.acknowledges_since(over):
            recovery = round((time.monotonic_ns() - over) / 1e9, 2)
    return Passed(trouble.__name__, recovery)
