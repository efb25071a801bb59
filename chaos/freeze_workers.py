"""SIGSTOP a worker until its leases are long gone, then SIGCONT: what it still writes is refused, and it is told."""

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
from chaos.jobs import dashed, records_of, until_done
from chaos.ledger import Ledger, latest
from chaos.outcome import Outcome
from chaos.stores import opened
from chaos.worker import CONCURRENCY, LEASE, STEP, make_app
from headrace import App
from headrace.seam.records import JobId

TOLD = 1.0
"""Seconds after its process goes on within which a handler knows that its lease is gone."""
STEPS = 32
"""Of ``walk``: more than can be done before the handler has to be told."""
MAX_LOST = 20


class Freeze(Struct, frozen=True):
    """One process that stood still, by the machine's monotonic clock, in nanoseconds."""

    pid: int
    stopped: int
    went_on: int


class Late(Struct, frozen=True):
    """A run that was under way when its process stood still."""

    id: str
    epoch: int
    known: float | None
    """Seconds from the thaw until its handler was told, or came to its end."""


async def run(
    folder: Path,
    *,
    freezes: int,
    processes: int,
    seed: int,
    backend: str = "postgres",
    lease: float = LEASE,
    budget: float = 600.0,
) -> Outcome:
    """Stop workers ``freezes`` times for two to four leases each, while ``processes`` of them work."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    with opened(backend, folder) as store:
        app = make_app(store.url, lease=lease)
        async with app:
            fleet = Fleet(
                store.url, ledger_folder, size=processes, seconds=0.0, rng=rng, max_lost=MAX_LOST, lease=lease
            )  # fmt: skip
            ids: list[JobId] = []
            try:
                began = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    enough = asyncio.Event()
                    group.create_task(_keep_busy(app, ids, processes, enough))
                    found_at = [await _freeze(fleet, ledger_folder, lease, rng) for _ in range(freezes)]
                    enough.set()
                drained = await until_done(app, began + budget)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            records = await records_of(app, ids)
    ledger = Ledger(ledger_folder)
    found = Findings(ids, records, ledger)
    late = [each for freeze in found_at for each in _late(ledger, freeze)]
    last = {dashed(record.id): record.epoch for record in records if record is not None}
    refused = sum(each.epoch < last.get(each.id, 0) for each in late)
    known = [each.known for each in late if each.known is not None]
    in_time = sum(seconds <= TOLD for seconds in known)
    reached = found.figures() | {
        "freezes": len(found_at),
        "runs under way in a frozen process": len(late),
        "of these, taken over by others and refused": refused,
        "handlers told in time": f"{in_time} of {len(late)}",
        "slowest to be told s": round(max(known, default=0.0), 2),
        "drained": drained,
        "seconds": round(time.monotonic() - began, 1),
        "workers that ended by themselves": crashed,
        "exit codes": sorted(set(codes)),
    }
    said = (
        (not late, "no run was under way in any frozen process"),
        (refused < len(late), f"{len(late) - refused} late outcomes were not refused"),
        (in_time < len(late), f"{len(late) - in_time} handlers did not know in {TOLD:g} s that their lease was gone"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
    )
    problems = found.problems() + [text for bad, text in said if bad]
    return Outcome(
        scenario="freeze_workers",
        backend=store.name,
        asked={"freezes": freezes, "processes": processes, "lease s": lease, "seconds per job": STEPS * STEP},
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )


async def _keep_busy(app: App, ids: list[JobId], processes: int, enough: asyncio.Event) -> None:
    walk: Any = app.tasks["walk"]
    least = processes * CONCURRENCY
    while not enough.is_set():
        queues = (await app.client.stats()).queues
        if sum(queue.available for queue in queues) < least:
            ids += [answer.id for answer in await app.client.insert(walk.job(STEPS) for _ in range(least))]
        await asyncio.sleep(0.2)


async def _freeze(fleet: Fleet, ledger: Path, lease: float, rng: random.Random) -> Freeze:
    """Stop a worker that works; return when it works again."""
    await _works(ledger, fleet.pids, time.monotonic_ns())
    await asyncio.sleep(rng.random() * STEPS * STEP)
    victim = rng.choice(fleet.pids)
    fleet.freeze(victim)
    stopped = time.monotonic_ns()
    await asyncio.sleep(lease * (2 + 2 * rng.random()))
    went_on = time.monotonic_ns()
    fleet.thaw(victim)
    await _works(ledger, [victim], went_on + int(TOLD * 1e9))
    return Freeze(victim, stopped, went_on)


async def _works(ledger: Path, pids: Sequence[int], since: int) -> None:
    async with asyncio.timeout(60):
        while True:
            started = latest(ledger, "start")
            if all(started.get(pid, 0) > since for pid in pids):
                return
            await asyncio.sleep(0.05)


def _late(ledger: Ledger, freeze: Freeze) -> list[Late]:
    mine = [entry for entry in ledger.entries if entry.pid == freeze.pid]
    through = {(entry.id, entry.epoch): entry.ns for entry in mine if entry.kind in ("told", "end")}
    found = []
    for entry in mine:
        if entry.kind != "start" or entry.ns > freeze.stopped:
            continue
        at = through.get((entry.id, entry.epoch))
        if at is None or at > freeze.stopped:
            found.append(Late(entry.id, entry.epoch, None if at is None else (at - freeze.went_on) / 1e9))
    return found
