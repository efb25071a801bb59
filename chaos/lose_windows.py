"""PostgreSQL and Valkey together, under load: Valkey is flushed, killed and stopped, PostgreSQL is killed, and so are
workers. What Valkey forgets runs again; nothing is lost, and no stale outcome counts."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from servers.postgres import Postgres
from servers.valkey import Valkey

from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.ledger import Ledger
from chaos.load import Load
from chaos.outcome import Outcome
from chaos.stores import postgres, valkey
from chaos.worker import LEASE, make_app
from headrace import Streams

TROUBLES = ("flush", "kill valkey", "hang valkey", "kill postgres", "kill worker")
MAX_LOST = 20


async def run(
    folder: Path,
    *,
    rounds: int,
    processes: int,
    seed: int,
    rate: int = 500,
    seconds: float = 0.01,
    lease: float = LEASE,
    pause: float = 3.0,
    budget: float = 900.0,
) -> Outcome:
    """Enqueue ``rate`` jobs a second while ``processes`` workers run, and everything above happens ``rounds`` times."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    with postgres(folder) as keeps, valkey(folder, "everysec") as gives:
        url = Streams(pg=keeps.url, valkey=gives.url, window=500).url
        app = make_app(url, lease=lease)
        done: list[str] = []
        async with app:
            given = {"size": processes, "seconds": seconds, "rng": rng, "max_lost": MAX_LOST, "lease": lease}
            fleet = Fleet(url, ledger_folder, **given)
            load = Load(app, rate)
            try:
                began = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    producers = load.start(group)
                    for trouble in rng.sample(TROUBLES * rounds, len(TROUBLES) * rounds):
                        await asyncio.sleep(pause)
                        await _make(trouble, keeps.server, gives.server, fleet, rng)
                        done.append(trouble)
                    await asyncio.sleep(pause)
                    load.enough = True
                    await asyncio.wait(producers)
                drained = await until_done(app, began + budget)
            finally:
                codes = fleet.stop()
            records = await records_of(app, list(load.acknowledged))
            windows = (await app.client.backend()).windows
            consumers = 0 if windows is None else max((one.consumers for one in await windows.look()), default=0)
        integrity = keeps.integrity()
    found = Findings(list(load.acknowledged), records, Ledger(ledger_folder), asked=load.asked)
    reached = found.figures() | {name: done.count(name) for name in TROUBLES} | {
        "runs beyond one for each job": Ledger(ledger_folder).count("start") - found.jobs,
        "enqueues that were given up": load.given_up,
        "consumers in the end": consumers,
        "integrity": integrity,
        "drained": drained,
        "seconds": round(time.monotonic() - began, 1),
        "exit codes": sorted(set(codes)),
    }  # fmt: skip
    said = ((integrity != "ok", f"PostgreSQL's own check says {integrity}"), (not drained, "not all was done in time"))
    problems = found.problems() + [text for bad, text in said if bad]
    return Outcome(
        scenario="lose_windows",
        backend="streams",
        asked={"rounds": rounds, "processes": processes, "jobs a second": rate},
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )


async def _make(trouble: str, keeps: Postgres, gives: Valkey, fleet: Fleet, rng: random.Random) -> None:
    match trouble:
        case "flush":
            await asyncio.to_thread(gives.call, "FLUSHALL")
        case "kill valkey":
            await asyncio.to_thread(gives.kill)
            await asyncio.sleep(rng.random() * 2)
            await asyncio.to_thread(gives.start)
        case "hang valkey":
            await asyncio.to_thread(gives.freeze)
            await asyncio.sleep(2 + 2 * rng.random())
            gives.thaw()
        case "kill postgres":
            await asyncio.to_thread(keeps.kill)
            await asyncio.sleep(rng.random() * 2)
            await asyncio.to_thread(keeps.start)
        case _:
            fleet.kill_one()
