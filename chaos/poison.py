"""Jobs that kill their worker, and payloads that cannot be read, among innocent ones."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from chaos.fleet import Fleet
from chaos.jobs import records_of
from chaos.ledger import Ledger
from chaos.outcome import Outcome
from chaos.stores import opened
from chaos.worker import LEASE, make_app
from headrace import JobState, NewJob, Sections
from headrace.seam.records import JobId

MAX_LOST = 2
GARBAGE = (b"", b"\x01", b"\x01\0\0\0\0{", b"\x7f" * 40, b"\x11" + b"\0" * 30, b'{"number": "one"}')


async def run(
    folder: Path,
    *,
    jobs: int,
    killers: int,
    processes: int,
    seed: int,
    backend: str = "sqlite",
    seconds: float = 0.002,
    lease: float = 2 * LEASE,
    budget: float = 300.0,
) -> Outcome:
    """Every killer is a dead letter after at most three crashes; every innocent job is done.

    However slowly workers start again: a fleet that falls again and again is not taken for one that was switched off.
    """
    with opened(backend, folder) as store:
        outcome = await _run(folder, store.url, jobs, killers, processes, seed, seconds, lease, budget)
    outcome.backend = store.name
    return outcome


async def _run(
    folder: Path,
    url: str,
    jobs: int,
    killers: int,
    processes: int,
    seed: int,
    seconds: float,
    lease: float,
    budget: float,
) -> Outcome:
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    app = make_app(url)
    work: Any = app.tasks["work"]
    killer: Any = app.tasks["killer"]
    kinds = ["work"] * jobs + ["killer"] * killers + ["garbage"] * killers
    rng.shuffle(kinds)
    made = {
        "work": lambda: work.job(rng.randrange(1_000)),
        "killer": lambda: killer.job(),
        "garbage": lambda: NewJob(task="work", queue="chaos", sections=Sections(parameters=rng.choice(GARBAGE))),
    }
    began = time.monotonic()
    async with app:
        answers = await app.client.insert(made[kind]() for kind in kinds)
        ids = [answer.id for answer in answers]
        fleet = Fleet(url, ledger_folder, size=processes, seconds=seconds, rng=rng, max_lost=MAX_LOST, lease=lease)
        crashes = 0
        try:
            while time.monotonic() < began + budget:
                crashes += fleet.replace_dead()
                [queue] = (await app.client.stats()).queues
                if not queue.available and not queue.running:
                    break
                await asyncio.sleep(0.05)
        finally:
            fleet.stop()
        records = dict(zip(ids, await records_of(app, ids), strict=True))
    ledger = Ledger(ledger_folder)
    runs = ledger.runs()
    by_kind: dict[str, list[JobId]] = {kind: [] for kind in made}
    for kind, job_id in zip(kinds, ids, strict=True):
        by_kind[kind].append(job_id)

    def ended(kind: str, state: JobState) -> int:
        return sum(record is not None and record.state is state for record in map(records.get, by_kind[kind]))

    deaths = [count for job, count in runs.items() if bytes.fromhex(job.replace("-", "")) in set(by_kind["killer"])]
    reached = {
        "innocent jobs done": ended("work", JobState.COMPLETED),
        "innocent dead letters": ended("work", JobState.FAILED),
        "killers set aside": ended("killer", JobState.FAILED),
        "most crashes by one killer": max(deaths, default=0),
        "unreadable jobs set aside": ended("garbage", JobState.FAILED),
        "worker deaths": crashes,
        "epochs given out twice": ledger.doubled(),
        "seconds": round(time.monotonic() - began, 1),
    }
    problems = problems_of(reached, jobs, killers)
    asked = {"jobs": jobs, "killers": killers, "unreadable": killers, "processes": processes, "lease s": lease}
    return Outcome(
        scenario="poison",
        backend="",
        asked=asked,
        reached=reached,
        ok=not problems,
        seed=seed,
        problems=problems,
    )


def problems_of(reached: dict[str, Any], jobs: int, killers: int) -> list[str]:
    """What does not hold."""
    doubled = reached["epochs given out twice"]
    said = (
        (reached["innocent jobs done"] != jobs, "not every innocent job was done"),
        (reached["innocent dead letters"], "innocent jobs among the dead letters"),
        (reached["killers set aside"] != killers, "not every killer was set aside"),
        (reached["most crashes by one killer"] > MAX_LOST + 1, "a killer crashed too often"),
        (reached["unreadable jobs set aside"] != killers, "not every unreadable job was set aside"),
        (reached["worker deaths"] > killers * (MAX_LOST + 1), "more worker deaths than killers can explain"),
        (doubled, f"{doubled} leases were given out twice: two runs under one epoch"),
    )
    return [text for bad, text in said if bad]
