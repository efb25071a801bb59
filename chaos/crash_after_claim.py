"""SIGKILL the server the moment it has handed out jobs, and start it again at once: what was handed out stays so. Of
PostgreSQL and Valkey together, each in turn.

There are three ways to give jobs out: from one plain queue, by the turns of the tenants of a governed one, and from
several queues, one of them governed.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.ledger import Ledger, latest
from chaos.outcome import Outcome
from chaos.stores import SERVERS, PostgresStore, Store, StreamsStore, ValkeyStore, opened
from chaos.strict import StrictJobs
from chaos.worker import LEASE, STEP, make_app
from headrace import App
from headrace.seam.records import JobId

WAYS = ("plain", "turns", "several")
TENANTS = 4
EACH = 8
"""Jobs of each kind in a round: plain ones, those that may be started once, those of groups."""


async def run(
    folder: Path,
    *,
    rounds: int,
    processes: int,
    seed: int,
    backend: str = "postgres",
    way: str = "plain",
    lease: float = LEASE,
    budget: float = 600.0,
) -> Outcome:
    """``rounds`` times: jobs come to idle workers with room for more, and the server is killed as soon as one starts.
    The jobs last for half a lease, so that the first runs go on while the server is back."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    steps = max(1, round(lease / 2 / STEP))
    with opened(backend, folder) as store:
        servers = _servers(store)
        streams = isinstance(store, StreamsStore)
        lined = streams or way == "several"
        app = make_app(store.url, lease=lease, lined=lined)
        async with app:
            if way != "plain":
                await app.policies.set("chaos", tenant_batch=2)
            fleet = Fleet(store.url, ledger_folder, size=processes, seconds=0.0, rng=rng, lease=lease, lined=lined)
            strict = StrictJobs(app, steps)
            ids: list[JobId] = []
            began = time.monotonic()
            killed = 0
            first: list[JobId] = []
            drained = await _quiet(app, ledger_folder, fleet, first, began + budget)
            try:
                for number in range(rounds):
                    walk: Any = app.tasks["walk"]
                    plain = [walk.options(tenant=f"t{n % TENANTS}").job(steps) for n in range(EACH)]
                    since = time.monotonic_ns()
                    stored = await (await app.client.backend()).insert(
                        [*map(app.client.packer.pack, plain), *strict.rows(EACH)]
                    )
                    ids += [answer.id for answer in stored]
                    if await _handed_out(ledger_folder, since):
                        victim = servers[number % len(servers)].server
                        await asyncio.to_thread(victim.kill)
                        await asyncio.to_thread(victim.start)
                        killed += 1
                    drained = drained and await until_done(app, began + budget)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            records = await records_of(app, ids)
        integrity = store.integrity()
    ledger = Ledger(ledger_folder)
    found, figures, problems = strict.judge(ids, records, ledger, asked=first, forgets=streams)
    reached = found.figures() | figures | {
        "kills": killed,
        "jobs taken back": ledger.count("stalled"),
        "runs": ledger.runs().total(),
        "integrity": integrity,
        "seconds": round(time.monotonic() - began, 1),
        "exit codes": sorted(set(codes)),
    }  # fmt: skip
    said = (
        (killed < rounds, f"only {killed} of {rounds} times jobs were handed out at all"),
        (integrity != "ok", f"the store's own check says {integrity}"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
    )
    problems += found.problems() + [text for bad, text in said if bad]
    return Outcome(
        scenario=f"crash_after_claim ({way})",
        backend=store.name,
        asked={"rounds": rounds, "processes": processes, "jobs a round": 3 * EACH, "lease s": lease},
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )


def _servers(store: Store) -> list[PostgresStore | ValkeyStore]:
    """Those that are killed by turns."""
    match store:
        case StreamsStore():
            return [store.gives, store.keeps]
        case PostgresStore() | ValkeyStore():
            return [store]
    raise SystemExit(f"{store.name} is no server; there are {', '.join(SERVERS)} and streams")


async def _quiet(app: App, ledger: Path, fleet: Fleet, ids: list[JobId], deadline: float) -> bool:
    """Wait until every worker listens: one job after the other, until each of them has had one."""
    walk: Any = app.tasks["walk"]
    while len(latest(ledger, "start")) < len(fleet.pids):
        ids += [answer.id for answer in await app.client.insert(walk.job(1) for _ in fleet.pids)]
        if not await until_done(app, deadline):
            return False
    return True


async def _handed_out(ledger: Path, since: int) -> bool:
    """Wait for the first start of a job of this round."""
    patience = time.monotonic() + 30
    while time.monotonic() < patience:
        if any(at > since for at in latest(ledger, "start").values()):
            return True
        await asyncio.sleep(0.002)
    return False
