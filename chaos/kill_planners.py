"""SIGKILL workers that plan thousands of schedules: one job for each slot, in time, and none left out."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from chaos.fleet import Fleet
from chaos.jobs import until_done
from chaos.ledger import Ledger
from chaos.outcome import Outcome
from chaos.stores import opened
from chaos.worker import AHEAD, make_app
from headrace import App, Every
from headrace.schedules.plan import job_id, unpack
from headrace.schedules.plan import run_at as due_at
from headrace.seam.instants import to_datetime
from headrace.seam.protocol import TickStore
from headrace.seam.records import Selector
from headrace.seam.ticks import Look, Schedule, ScheduleSelector, Tick, TickOutcome

LATE = 1.0
"""Seconds after its instant by which 99 of 100 jobs must have been started."""
SKIPPING = 10
"""One schedule of so many skips slots while its last job is alive: such a one is planned at the instant itself."""


async def run(
    folder: Path,
    *,
    schedules: int,
    interval: float,
    seconds: float,
    pause: float,
    processes: int,
    seed: int,
    backend: str = "postgres",
    lease: float = 5.0,
    late_by: float = LATE,
    lead: float = 120.0,
    ahead: float = AHEAD,
) -> Outcome:
    """Kill one of the workers every ``pause`` seconds for ``seconds``; then hold the ledger against the grid."""
    rng = random.Random(seed)
    ledger_folder = folder / "ledger"
    ledger_folder.mkdir()
    with opened(backend, folder) as store:
        app = make_app(store.url, ahead=ahead)
        async with app:
            fleet = Fleet(store.url, ledger_folder, size=processes, seconds=0.0, rng=rng, lease=lease, ahead=ahead)
            try:
                begins = time.monotonic() + lead
                await _plant(app, schedules, interval, lead, rng)
                if time.monotonic() > begins:
                    raise RuntimeError(f"planting took longer than {lead:g} s, and the first slots are over")
                await asyncio.sleep(begins - time.monotonic())
                end = time.monotonic() + seconds
                while time.monotonic() + pause < end:
                    await asyncio.sleep(pause)
                    await asyncio.to_thread(fleet.kill_one)
                await asyncio.sleep(max(0.0, end - time.monotonic()))
                closed = time.time_ns() // 1_000
                books = await _close(app)
                drained = await until_done(app, time.monotonic() + ahead + 60)
                crashed = fleet.crashed()
            finally:
                codes = fleet.stop()
            stored = await _stored(app)
        integrity = store.integrity()
    ledger = Ledger(ledger_folder)
    late = sorted(_first_starts(ledger).values())
    p99 = late[int(len(late) * 0.99)] / 1e6 if late else 0.0
    fired = sum(tick.outcome is TickOutcome.FIRED for _, ticks in books for tick in ticks)
    expected = sum(_expected(schedule) for schedule, _ in books)
    behind = sum(_stands(schedule) < closed - int(late_by * 1e6) for schedule, _ in books)
    least = int(schedules * seconds / interval)
    dealt_with = sum(tick.count for _, ticks in books for tick in ticks)
    wrong = sum(not _on_the_grid(schedule, ticks) for schedule, ticks in books)
    unknown = stored - {tick.job for _, ticks in books for tick in ticks}
    started = len(late)
    outcomes = Counter(tick.outcome.value for _, ticks in books for tick in ticks)
    said = (
        (behind, f"{behind} schedules were not planned until the end"),
        (expected < least, f"{expected} slots came up, where {least} were to be expected at least"),
        (expected != dealt_with, f"{expected} slots were expected, {dealt_with} are on the ledger"),
        (wrong, f"{wrong} schedules have ticks beside their grid, or holes in it"),
        (len(stored) != fired or unknown, f"{fired} slots fired, but {len(stored)} jobs are stored"),
        (started < fired, f"{fired - started} jobs of slots were never started"),
        (p99 > late_by, f"of 100 jobs one was started {p99:.2f} s after its instant, or later"),
        (not drained, "not everything was done in time"),
        (crashed, f"{crashed} workers ended by themselves: {fleet.errors()[-2000:]}"),
        (integrity != "ok", f"the store's own check says {integrity}"),
    )
    problems = [text for bad, text in said if bad]
    return Outcome(
        scenario="kill_planners",
        backend=store.name,
        asked={"schedules": schedules, "interval": interval, "seconds": seconds, "processes": processes},
        reached={
            "kills": fleet.kills,
            "slots expected": expected,
            **outcomes,
            "jobs stored": len(stored),
            "duplicates": len(stored) - fired,
            "started late, median ms": round(late[len(late) // 2] / 1e3, 1) if late else None,
            "started late, p99 ms": round(p99 * 1e3, 1),
            "exit codes": sorted(set(codes)),
        },
        ok=not problems,
        seed=seed,
        problems=problems,
    )


async def _plant(app: App, count: int, interval: float, lead: float, rng: random.Random) -> None:
    """Schedules that begin when all are planted, with phases that are spread over their interval."""
    ticks = await _ticks(app)
    now = to_datetime((await ticks.due(Look(1))).now)
    task: Any = app.tasks["tick"]
    job = task.job()
    gate = asyncio.Semaphore(50)

    async def put(number: int) -> None:
        async with gate:
            start = now + timedelta(seconds=lead + rng.random() * interval)
            overlap: Any = "skip" if number % SKIPPING == 0 else "allow"
            spec = Every(interval, job, name=f"s{number}", start=start, misfire="all", overlap=overlap)
            await app.schedules.put(spec)

    await asyncio.gather(*(put(number) for number in range(count)))


async def _ticks(app: App) -> TickStore:
    backend = await app.client.backend()
    assert backend.ticks is not None
    return backend.ticks


async def _close(app: App) -> list[tuple[Schedule, list[Tick]]]:
    """Stop all schedules; what each says, and what the ledger says of it."""
    ticks = await _ticks(app)
    names = [info.name for info in await app.schedules.list(limit=1_000_000)]
    gate = asyncio.Semaphore(50)

    async def close(name: str) -> tuple[Schedule, list[Tick]]:
        async with gate:
            await app.schedules.disable(name)
            [schedule] = await ticks.find(ScheduleSelector(names=[name]))
            return schedule, (await ticks.history(schedule.uid, None, 1_000))[::-1]

    return list(await asyncio.gather(*(close(name) for name in names)))


async def _stored(app: App) -> set[bytes | None]:
    """The ids of all jobs that there are."""
    return {info.id.bytes for info in await app.client.list_jobs(Selector(task="tick"), 10_000_000)}


def _stands(schedule: Schedule) -> int:
    """When the first job is due that is not planned."""
    return 0 if schedule.slot is None else due_at(schedule.uid, schedule.slot, unpack(schedule.definition))


def _expected(schedule: Schedule) -> int:
    """Slots of the grid from its start to where the schedule stands."""
    definition = unpack(schedule.definition)
    slot, count = definition.start, 0
    while slot is not None and schedule.slot is not None and slot < schedule.slot:
        slot, count = definition.following(slot), count + 1
    return count


def _on_the_grid(schedule: Schedule, ticks: Sequence[Tick]) -> bool:
    """Whether the ticks are the grid, slot by slot, each with the jitter and the job that follow from it."""
    definition = unpack(schedule.definition)
    slot = definition.start
    for tick in ticks:
        if tick.slot != slot or tick.run_at != due_at(schedule.uid, slot, definition):
            return False
        if tick.outcome is TickOutcome.FIRED and tick.job != job_id(schedule.uid, slot, tick.run_at):
            return False
        for _ in range(tick.count):
            slot = None if slot is None else definition.following(slot)
    return slot == schedule.slot


def _first_starts(ledger: Ledger) -> dict[str, int]:
    """How many microseconds after its instant each job was first started."""
    found: dict[str, int] = {}
    for entry in ledger.entries:
        if entry.kind == "late":
            found[entry.id] = min(entry.epoch, found.get(entry.id, entry.epoch))
    return found
