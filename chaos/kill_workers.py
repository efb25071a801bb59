"""SIGKILL random workers under load: nothing acknowledged is lost, nothing stale is accepted."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import apsw

from chaos.fleet import Fleet
from chaos.ledger import Ledger
from chaos.outcome import Outcome
from chaos.worker import CONCURRENCY, make_app
from headrace import App, JobState
from headrace.records import JobId, Record

CHUNK = 500
ACKNOWLEDGED = 1_000_000_000
"""Nanoseconds after its end within which a run must be acknowledged: a kill later than that does not undo it."""


async def run(
    folder: Path, *, jobs: int, kills: int, processes: int, seed: int, seconds: float = 0.002, budget: float = 600.0
) -> Outcome:
    """Enqueue ``jobs`` while ``processes`` workers run and ``kills`` of them are killed; then check everything."""
    rng = random.Random(seed)
    path = folder / "jobs.db"
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    app = make_app(f"sqlite:///{path}")
    async with app:
        fleet = Fleet(f"sqlite:///{path}", ledger_folder, size=processes, seconds=seconds, rng=rng)
        try:
            began = time.monotonic()
            ids, latencies = await _load(app, fleet, jobs, kills, rng)
            drained = await _until_done(app, began + budget)
            crashed = fleet.crashed()
        finally:
            codes = fleet.stop()
        records = await _records(app, ids)
    outcome = _judge(ids, records, Ledger(ledger_folder), fleet, path)
    outcome.seed = seed
    outcome.asked = {"jobs": jobs, "kills": kills, "processes": processes, "seconds per job": seconds}
    outcome.reached |= {
        "drained": drained,
        "seconds": round(time.monotonic() - began, 1),
        "enqueue p99 ms": round(sorted(latencies)[int(len(latencies) * 0.99)] * 1e3, 1),
        "workers that crashed by themselves": crashed,
        "exit codes": sorted(set(codes)),
    }
    if not drained:
        outcome.problems.append("not everything was done in time")
    if crashed:
        outcome.problems.append(f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}")
    if fleet.kills < kills:
        outcome.problems.append(f"only {fleet.kills} of {kills} kills")
    outcome.ok = not outcome.problems
    return outcome


async def _load(app: App, fleet: Fleet, jobs: int, kills: int, rng: random.Random) -> tuple[list[JobId], list[float]]:
    """Enqueue in chunks, killing as we go; the kills are spread over the whole load and a while beyond it."""
    task: Any = app.tasks["work"]
    ids: list[JobId] = []
    latencies = []
    chunks = -(-jobs // CHUNK)
    for chunk in range(chunks):
        batch = [task.job(number) for number in range(chunk * CHUNK, min(jobs, (chunk + 1) * CHUNK))]
        before = time.monotonic()
        ids += [answer.id for answer in await app.client.insert(batch)]
        latencies.append(time.monotonic() - before)
        while fleet.kills < kills * (chunk + 1) // (2 * chunks):
            await _kill(fleet, rng)
    while fleet.kills < kills:
        await _kill(fleet, rng)
    return ids, latencies


async def _kill(fleet: Fleet, rng: random.Random) -> None:
    # Workers need about half a second to start; killing faster would only ever kill newborns.
    await asyncio.sleep(0.3 + rng.random() * 0.4)
    await asyncio.to_thread(fleet.kill_one)


async def _until_done(app: App, deadline: float) -> bool:
    while time.monotonic() < deadline:
        queues = (await app.client.stats()).queues
        if not any(queue.available + queue.running + queue.jobs_paused for queue in queues):
            return True
        await asyncio.sleep(0.2)
    return False


async def _records(app: App, ids: list[JobId]) -> list[Record | None]:
    backend = await app.client.backend()
    found: list[Record | None] = []
    for start in range(0, len(ids), 1_000):
        found += await backend.fetch(ids[start : start + 1_000], frozenset({"result"}))
    return found


def _judge(ids: list[JobId], records: list[Record | None], ledger: Ledger, fleet: Fleet, path: Path) -> Outcome:
    known = {job_id.hex() for job_id in ids}
    runs = ledger.runs()
    lost = sum(record is None for record in records)
    undone = sum(record is not None and record.state is not JobState.COMPLETED for record in records)
    stale = sum(record is not None and _stale(record) for record in records)
    phantom = sum(job_id.replace("-", "") not in known for job_id in runs)
    unrun = sum(runs[_dashed(job_id)] == 0 for job_id in ids)
    again = ledger.repeated()
    lapsed = ledger.ids("lease_lost")
    unexplained = sum(run.pid not in fleet.killed and run.id.replace("-", "") not in lapsed for run in again)
    ended = [fleet.killed[run.pid] - run.ended for run in again if run.ended is not None and run.pid in fleet.killed]
    dawdled = sum(since > ACKNOWLEDGED for since in ended)
    under_way = Counter(run.pid for run in again if run.ended is None)
    overfull = sum(count > CONCURRENCY for count in under_way.values())
    integrity = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY).execute("pragma integrity_check").get
    errors = ledger.count("store_away")
    problems = [
        text
        for bad, text in (
            (lost, f"{lost} acknowledged jobs are gone"),
            (undone, f"{undone} jobs are not completed"),
            (unrun, f"{unrun} jobs are said to be done but no handler ran"),
            (phantom, f"{phantom} jobs ran that nobody enqueued"),
            (stale, f"{stale} outcomes of stale workers were accepted"),
            (errors, f"{errors} times a worker found the store away"),
            (unexplained, f"{unexplained} jobs ran again although nobody killed their worker"),
            (dawdled, f"{dawdled} jobs ran again although they had ended long before the kill"),
            (overfull, f"{overfull} workers had more jobs under way than they have slots"),
            (integrity != "ok", f"integrity_check says {integrity}"),
        )
        if bad
    ]
    reached = {
        "jobs": len(ids),
        "kills": fleet.kills,
        "lost": lost,
        "stale outcomes accepted": stale,
        "runs again, under way at the kill": under_way.total(),
        "runs again, ended but not acknowledged": len(ended),
        "longest without acknowledgement ms": round(max(ended, default=0) / 1e6, 1),
        "leases that lapsed": len(lapsed),
        "busy errors seen": errors,
        "integrity": integrity,
    }
    return Outcome(
        scenario="kill_workers", backend="sqlite", asked={}, reached=reached, ok=False, seed=0, problems=problems
    )


def _stale(record: Record) -> bool:
    """Results name the epoch that made them: it must be the last one granted."""
    return record.result is None or int(record.result[5:]) != record.epoch


def _dashed(job_id: JobId) -> str:
    digits = job_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
