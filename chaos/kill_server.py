"""SIGKILL the PostgreSQL server itself, under load: its workers and producers find back to it by themselves."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.ledger import Ledger, latest
from chaos.outcome import Outcome
from chaos.stores import PostgresStore, postgres
from chaos.worker import LEASE, make_app
from headrace import App
from headrace.errors import Unavailable
from headrace.records import JobId

RECOVERED = 5.0
"""Seconds after the server is ready within which every worker has to work again."""
MAX_LOST = 2
PRODUCERS = 2
CHUNK = 50
LONG = 40
"""Every so many jobs comes one that takes two seconds: longer than the server needs to come back."""


class Outage(Struct, frozen=True):
    """By the machine's monotonic clock, in nanoseconds."""

    killed: int
    ready: int
    over: int
    """When everybody worked again, or had had ample time to."""


async def run(
    folder: Path,
    *,
    kills: int,
    processes: int,
    seed: int,
    rate: int = 1_500,
    seconds: float = 0.01,
    lease: float = LEASE,
    budget: float = 600.0,
) -> Outcome:
    """Enqueue ``rate`` jobs a second while ``processes`` workers run and the server is killed ``kills`` times."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    with postgres(folder) as store:
        app = make_app(store.url, lease=lease)
        async with app:
            fleet = Fleet(
                store.url, ledger_folder, size=processes, seconds=seconds, rng=rng, max_lost=MAX_LOST, lease=lease
            )  # fmt: skip
            pids = fleet.pids
            load = _Load(app, rate / PRODUCERS)
            try:
                began = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    producers = [group.create_task(load.produce()) for _ in range(PRODUCERS)]
                    scene = _Scene(store, ledger_folder, pids, load)
                    outages = [await scene.kill(rng, 2 * lease) for _ in range(kills)]
                    load.enough = True
                    await asyncio.wait(producers)
                drained = await until_done(app, began + budget)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            records = await records_of(app, load.acknowledged)
        integrity = store.integrity()
    ledger = Ledger(ledger_folder)
    found = Findings(load.acknowledged, records, ledger, asked=load.asked)
    recoveries = [_recovery(ledger, pid, outage) for outage in outages for pid in pids]
    quick = sum(seconds is not None and seconds <= RECOVERED for seconds in recoveries)
    losses = [record.lost for record in records if record is not None]
    reached = found.figures() | {
        "kills": len(outages),
        "workers consuming again in time": f"{quick} of {len(recoveries)}",
        "slowest worker s": max((round(each, 2) for each in recoveries if each is not None), default=None),
        "slowest producer s": round(max(load.recoveries(outages), default=0.0), 2),
        "longest outage s": round(max((each.ready - each.killed) / 1e9 for each in outages), 2),
        "attempts burnt": found.burnt,
        "times a job was taken back from its worker": ledger.count("stalled"),
        "most losses counted for a job": max(losses, default=0),
        "enqueues that were given up": load.given_up,
        "integrity": integrity,
        "drained": drained,
        "seconds": round(time.monotonic() - began, 1),
        "workers that ended by themselves": crashed,
        "exit codes": sorted(set(codes)),
    }
    said = (
        (
            quick < len(recoveries),
            f"only {quick} of {len(recoveries)} times a worker consumed again in {RECOVERED:g} s",
        ),
        (integrity != "ok", f"the store's own check says {integrity}"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
        (fleet.pids != pids, "a worker was started again"),
    )
    problems = found.problems() + [text for bad, text in said if bad]
    return Outcome(
        scenario="kill_server",
        backend=store.name,
        asked={"kills": kills, "processes": processes, "jobs a second": rate, "seconds per job": seconds},
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )


class _Load:
    """Producers, and what they know."""

    def __init__(self, app: App, rate: float) -> None:
        self._app = app
        self._pause = CHUNK / rate
        self.acknowledged: list[JobId] = []
        self.asked: set[JobId] = set()
        self.given_up = 0
        self.enough = False
        self._answers: list[int] = []

    async def produce(self) -> None:
        """Enqueue until it is enough."""
        work: Any = self._app.tasks["work"]
        walk: Any = self._app.tasks["walk"]
        while not self.enough:
            batch = [walk.job(40) if number % LONG == 0 else work.job(number) for number in range(CHUNK)]
            self.asked |= {job.id for job in batch}
            try:
                self.acknowledged += [answer.id for answer in await self._app.client.insert(batch)]
                self._answers.append(time.monotonic_ns())
            except Unavailable:
                self.given_up += 1
            await asyncio.sleep(self._pause)

    def acknowledges_since(self, instant: int) -> bool:
        return bool(self._answers) and self._answers[-1] > instant

    def recoveries(self, outages: Sequence[Outage]) -> list[float]:
        """Seconds from each return of the server to the next acknowledgement."""
        return [min(at - outage.ready for at in self._answers if at > outage.ready) / 1e9 for outage in outages]


class _Scene:
    """Everybody who has to do with the server."""

    def __init__(self, store: PostgresStore, ledger: Path, pids: Sequence[int], load: _Load) -> None:
        self._server = store.server
        self._ledger = ledger
        self._pids = pids
        self._load = load

    async def kill(self, rng: random.Random, longest: float) -> Outage:
        """Kill the server in the middle of its work; return when that is over. Some outages are shorter than a lease,
        some are longer."""
        await self._everybody_works(time.monotonic_ns())
        await asyncio.sleep(rng.random())
        killed = time.monotonic_ns()
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(rng.random() * longest)
        await asyncio.to_thread(self._server.start)
        ready = time.monotonic_ns()
        await self._everybody_works(ready)
        return Outage(killed, ready, time.monotonic_ns())

    async def _everybody_works(self, since: int) -> None:
        patience = time.monotonic() + 3 * RECOVERED
        while time.monotonic() < patience:
            started = latest(self._ledger, "start")
            if all(started.get(pid, 0) > since for pid in self._pids) and self._load.acknowledges_since(since):
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # what has come back goes on for a while


def _recovery(ledger: Ledger, pid: int, outage: Outage) -> float | None:
    """Seconds until this worker had started a job that it got from the server after its return; None: it never did.
    One that it had before does not count: a worker that has missed the server notes when it is back."""
    mine = [entry for entry in ledger.entries if entry.pid == pid and outage.killed < entry.ns <= outage.over]
    missed = any(entry.kind == "store_away" for entry in mine)
    since = min((entry.ns for entry in mine if entry.kind == "store_back"), default=None) if missed else outage.ready
    starts = [entry.ns for entry in mine if entry.kind == "start" and since is not None and entry.ns > since]
    return (min(starts) - outage.ready) / 1e9 if starts else None
