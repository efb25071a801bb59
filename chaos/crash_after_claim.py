"""SIGKILL the server the moment it has handed out jobs, and start it again at once: what was handed out stays so."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from chaos.findings import Findings
from chaos.fleet import Fleet
from chaos.jobs import dashed, records_of, until_done
from chaos.ledger import Ledger, latest
from chaos.lines import Lines
from chaos.outcome import Outcome
from chaos.stores import served
from chaos.worker import LEASE, STEP, make_app
from headrace import App
from headrace.schedules.plan import DELIVERY, Delivery
from headrace.seam.records import JobId, Row

EACH = 8
"""Jobs of each kind in a round: plain ones, those that may be started once, those of groups."""
GROUPS = 4
ONCE = msgspec.msgpack.encode({DELIVERY: Delivery.AT_MOST_ONCE.value})
"""The headers of a slot of a schedule that asks for it."""


async def run(
    folder: Path,
    *,
    rounds: int,
    processes: int,
    seed: int,
    backend: str = "postgres",
    lease: float = LEASE,
    budget: float = 600.0,
) -> Outcome:
    """``rounds`` times: jobs come to idle workers with room for more, and the server is killed as soon as one starts.
    The jobs last for half a lease, so that the first runs go on while the server is back."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    steps = max(1, round(lease / 2 / STEP))
    with served(backend, folder) as store:
        app = make_app(store.url, lease=lease)
        async with app:
            fleet = Fleet(store.url, ledger_folder, size=processes, seconds=0.0, rng=rng, lease=lease)
            ids: list[JobId] = []
            once: list[JobId] = []
            lines: list[Sequence[JobId]] = []
            began = time.monotonic()
            killed = 0
            first: list[JobId] = []
            drained = await _quiet(app, ledger_folder, fleet, first, began + budget)
            try:
                for _ in range(rounds):
                    made = _rows(app, steps)
                    since = time.monotonic_ns()
                    new = [answer.id for answer in await (await app.client.backend()).insert(made)]
                    ids += new
                    once += new[EACH : 2 * EACH]
                    lines += [new[2 * EACH + group :: GROUPS] for group in range(GROUPS)]
                    if await _handed_out(ledger_folder, since):
                        await asyncio.to_thread(store.server.kill)
                        await asyncio.to_thread(store.server.start)
                        killed += 1
                    drained = drained and await until_done(app, began + budget)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            records = await records_of(app, ids)
        integrity = store.integrity()
    ledger = Ledger(ledger_folder)
    found = Findings(ids, records, ledger, asked=first)
    runs = ledger.runs()
    twice = sum(runs[dashed(job_id)] > 1 for job_id in once)
    epochs = {record.id: record.epoch for record in records if record is not None}
    early = Lines(ledger, epochs).early(lines)
    reached = found.figures() | {
        "kills": killed,
        "at most once, started twice": twice,
        "jobs of groups out of order": early,
        "jobs taken back": ledger.count("stalled"),
        "runs": sum(Counter(runs).values()),
        "integrity": integrity,
        "seconds": round(time.monotonic() - began, 1),
        "exit codes": sorted(set(codes)),
    }
    said = (
        (killed < rounds, f"only {killed} of {rounds} times jobs were handed out at all"),
        (twice, f"{twice} jobs that may be started once were started twice"),
        (early, f"{early} jobs of groups were started before the one in front of them had ended"),
        (integrity != "ok", f"the store's own check says {integrity}"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
    )
    problems = found.problems() + [text for bad, text in said if bad]
    return Outcome(
        scenario="crash_after_claim",
        backend=store.name,
        asked={"rounds": rounds, "processes": processes, "jobs a round": 3 * EACH, "lease s": lease},
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )


def _rows(app: App, steps: int) -> list[Row]:
    walk: Any = app.tasks["walk"]
    pack = app.client.packer.pack
    plain = [pack(walk.job(steps)) for _ in range(EACH)]
    once = [replace(pack(walk.job(steps)), headers=ONCE) for _ in range(EACH)]
    return plain + once + [pack(walk.options(group=f"g{n % GROUPS}").job(steps)) for n in range(EACH)]


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
