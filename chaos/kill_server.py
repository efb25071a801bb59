"""SIGKILL the server itself, under load: its workers and producers find back to it by themselves."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import records_of, until_done
from chaos.ledger import Ledger, latest
from chaos.load import Load
from chaos.outcome import Outcome
from chaos.stores import PostgresStore, ValkeyStore, served
from chaos.worker import LEASE, make_app

RECOVERED = 5.0
"""Seconds after the server is ready within which every worker has to work again."""
MAX_LOST = 2


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
    backend: str = "postgres",
    rate: int = 1_500,
    seconds: float = 0.01,
    lease: float = LEASE,
    recovered: float = RECOVERED,
    budget: float = 600.0,
) -> Outcome:
    """Enqueue ``rate`` jobs a second while ``processes`` workers run and the server is killed ``kills`` times."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    with served(backend, folder) as store:
        app = make_app(store.url, lease=lease)
        async with app:
            fleet = Fleet(
                store.url, ledger_folder, size=processes, seconds=seconds, rng=rng, max_lost=MAX_LOST, lease=lease
            )  # fmt: skip
            pids = fleet.pids
            load = Load(app, rate)
            try:
                began = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    producers = load.start(group)
                    scene = _Scene(store, ledger_folder, pids, load)
                    await scene.all_there()
                    outages = [await scene.kill(rng, 2 * lease) for _ in range(kills)]
                    load.enough = True
                    await asyncio.wait(producers)
                drained = await until_done(app, began + budget)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            records = await records_of(app, list(load.acknowledged))
        integrity = store.integrity()
    ledger = Ledger(ledger_folder)
    found = Findings(list(load.acknowledged), records, ledger, asked=load.asked)
    recoveries = [_recovery(ledger, pid, outage) for outage in outages for pid in pids]
    quick = sum(seconds is not None and seconds <= recovered for seconds in recoveries)
    losses = [record.lost for record in records if record is not None]
    reached = found.figures() | {
        "kills": len(outages),
        "workers consuming again in time": f"{quick} of {len(recoveries)}",
        "slowest worker s": max((round(each, 2) for each in recoveries if each is not None), default=None),
        "slowest producer s": round(max(_producers(load, outages), default=0.0), 2),
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
            f"only {quick} of {len(recoveries)} times a worker consumed again in {recovered:g} s",
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


class _Scene:
    """Everybody who has to do with the server."""

    def __init__(self, store: PostgresStore | ValkeyStore, ledger: Path, pids: Sequence[int], load: Load) -> None:
        self._server = store.server
        self._ledger = ledger
        self._pids = pids
        self._load = load

    async def all_there(self) -> None:
        """A worker that begins without a server ends at once, and says why."""
        async with asyncio.timeout(120):
            while not at_work(self._ledger, self._pids, 0):
                await asyncio.sleep(0.05)

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
            if at_work(self._ledger, self._pids, since) and self._load.acknowledges_since(since):
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # what has come back goes on for a while


def at_work(ledger: Path, pids: Sequence[int], since: int) -> bool:
    """Whether each of these has started a job that the server gave it after ``since``, and after it had found back to
    it: one that has missed the server may go on for a while with what it had."""
    started, away, back = (latest(ledger, kind) for kind in ("start", "store_away", "store_back"))
    return all(
        away.get(pid, 0) <= back.get(pid, 0) and started.get(pid, 0) > max(since, back.get(pid, 0)) for pid in pids
    )


def _producers(load: Load, outages: Sequence[Outage]) -> list[float]:
    """Seconds from each return of the server to the next acknowledgement."""
    return [min(at - outage.ready for at in load.answers if at > outage.ready) / 1e9 for outage in outages]


def _recovery(ledger: Ledger, pid: int, outage: Outage) -> float | None:
    """Seconds until this worker had started a job that it got from the server after its return; None: it never did.
    One that it had before does not count: a worker that has missed the server notes when it is back."""
    mine = [entry for entry in ledger.entries if entry.pid == pid and outage.killed < entry.ns <= outage.over]
    missed = any(entry.kind == "store_away" for entry in mine)
    since = min((entry.ns for entry in mine if entry.kind == "store_back"), default=None) if missed else outage.ready
    starts = [entry.ns for entry in mine if entry.kind == "start" and since is not None and entry.ns > since]
    return (min(starts) - outage.ready) / 1e9 if starts else None
