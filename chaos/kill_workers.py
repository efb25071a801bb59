"""SIGKILL random workers under load: nothing acknowledged is lost, nothing stale is accepted."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.ledger import Ledger
from chaos.outcome import Outcome
from chaos.stores import opened
from chaos.worker import CONCURRENCY, LEASE, make_app
from headrace import App, NewJob
from headrace.seam.records import JobId

CHUNK = 500
ACKNOWLEDGED = 1_000_000_000
"""Nanoseconds after its end within which a run must be acknowledged: a kill later than that does not undo it."""


async def run(
    folder: Path,
    *,
    jobs: int,
    kills: int,
    processes: int,
    seed: int,
    backend: str = "sqlite",
    seconds: float = 0.002,
    lease: float = LEASE,
    budget: float = 600.0,
) -> Outcome:
    """Enqueue ``jobs`` while ``processes`` workers run and ``kills`` of them are killed; then check everything."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    with opened(backend, folder) as store:
        app = make_app(store.url)
        async with app:
            fleet = Fleet(store.url, ledger_folder, size=processes, seconds=seconds, rng=rng, lease=lease)
            try:
                task: Any = app.tasks["work"]
                began = time.monotonic()
                ids, latencies = await feed(app, fleet, [task.job(number) for number in range(jobs)], kills, rng)
                drained = await until_done(app, began + budget)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            records = await records_of(app, ids)
        integrity = store.integrity()
    ledger = Ledger(ledger_folder)
    found = Findings(ids, records, ledger)
    again = Again(ledger, fleet)
    away = ledger.count("store_away")
    reached = found.figures() | {"kills": fleet.kills} | again.figures() | {
        "busy errors seen": away,
        "integrity": integrity,
        "drained": drained,
        "seconds": round(time.monotonic() - began, 1),
        "enqueue p99 ms": round(sorted(latencies)[int(len(latencies) * 0.99)] * 1e3, 1),
        "workers that crashed by themselves": crashed,
        "exit codes": sorted(set(codes)),
    }  # fmt: skip
    said = (
        (away, f"{away} times a worker found the store away"),
        (integrity != "ok", f"the store's own check says {integrity}"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
        (fleet.kills < kills, f"only {fleet.kills} of {kills} kills"),
    )
    problems = found.problems() + again.problems() + [text for bad, text in said if bad]
    return Outcome(
        scenario="kill_workers",
        backend=store.name,
        asked={"jobs": jobs, "kills": kills, "processes": processes, "seconds per job": seconds},
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )


async def feed(
    app: App, fleet: Fleet, jobs: Sequence[NewJob], kills: int, rng: random.Random, within: float = 0.5
) -> tuple[list[JobId], list[float]]:
    """Enqueue in chunks, killing as we go: such a share of the kills is spread over the whole load, the others come
    after it. What the jobs are called, and how long each chunk took."""
    ids: list[JobId] = []
    latencies = []
    for start in range(0, len(jobs), CHUNK):
        before = time.monotonic()
        ids += [answer.id for answer in await app.client.insert(jobs[start : start + CHUNK])]
        latencies.append(time.monotonic() - before)
        while fleet.kills < int(kills * within * len(ids) / len(jobs)):
            await _kill(fleet, rng)
    while fleet.kills < kills:
        await _kill(fleet, rng)
    return ids, latencies


async def _kill(fleet: Fleet, rng: random.Random) -> None:
    # Workers need about half a second to start; killing faster would only ever kill newborns. After a moment in which
    # the machine stood still, nobody has had the time to acknowledge anything.
    pause = 0.3 + rng.random() * 0.4
    for _ in range(10):
        due = time.monotonic() + pause
        await asyncio.sleep(pause)
        if time.monotonic() < due + 0.3:
            break
    await asyncio.to_thread(fleet.kill_one)


class Again:
    """The runs that were not their job's last, and what explains them."""

    def __init__(self, ledger: Ledger, fleet: Fleet) -> None:
        again = ledger.repeated()
        self._lapsed = len(ledger.ids("lease_lost"))
        self._unexplained = sum(run.pid not in fleet.killed for run in again)
        self._ended = [
            fleet.killed[run.pid] - run.ended for run in again if run.ended is not None and run.pid in fleet.killed
        ]
        self._under_way = Counter(run.pid for run in again if run.ended is None)

    def problems(self) -> list[str]:
        dawdled = sum(since > ACKNOWLEDGED for since in self._ended)
        overfull = sum(count > CONCURRENCY for count in self._under_way.values())
        said = (
            (self._unexplained, f"{self._unexplained} jobs ran again although nobody killed their worker"),
            (dawdled, f"{dawdled} jobs ran again although they had ended long before the kill"),
            (overfull, f"{overfull} workers had more jobs under way than they have slots"),
        )
        return [text for bad, text in said if bad]

    def figures(self) -> dict[str, Any]:
        return {
            "runs again, under way at the kill": self._under_way.total(),
            "runs again, ended but not acknowledged": len(self._ended),
            "longest without acknowledgement ms": round(max(self._ended, default=0) / 1e6, 1),
            "leases that lapsed": self._lapsed,
        }
