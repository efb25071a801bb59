"""How many slots of a fleet are at work while jobs on their last chance come: all of them, whoever takes those.

``python -m benchmarks.studies.chances`` takes an hour: 6 workers of 10 slots, started as anybody starts them,
with 5,000 jobs before them. None, one and a hundred jobs on their last chance come to the head of the queue when all
slots are full. What counts is the lowest number of jobs that ran at once, of looks every 50 ms between the first time
that all slots were full and the last start of a job. It is to stay at nine tenths of the slots. The verdict says so if
it did from when those jobs came until a lease after the last of them had started, but not always; and if a busy machine
did not let it, not even without jobs on their last chance, while it stayed at what it is without them. Both are softer
than what is asked for, and are to be repeated on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.results import HOME, aligned
from benchmarks.studies import chances_jobs
from benchmarks.studies.stores import STORES, Fresh, fresh, keep
from headrace import App
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, JobId, Move, Reap, Row, Selector

OUTPUT = HOME / "chances.jsonl"
_LOOK = 0.05
_PATIENCE = 120.0
_ASIDE = "aside"
_LOST = 2
_LEASE = 30.0
GOOD, NEAR, BUSY, IDLE = (
    "the slots stayed at work",
    "the slots stayed at work near them, but not always: the machine was busy",
    "as many slots as without them: the machine was busy",
    "slots stood idle",
)


@dataclass(frozen=True)
class Plan:
    """How much is asked for."""

    workers: int = 6
    slots: int = 10
    jobs: int = 5_000
    suspects: tuple[int, ...] = (0, 1, 100)
    seconds: float = 4.0
    """What a job takes on average; from half to three halves of it."""
    settle: float = 5.0
    """Between all slots being full, and the jobs on their last chance."""


QUICK = Plan(workers=2, slots=4, jobs=80, suspects=(0, 1), seconds=0.4, settle=0.2)


@dataclass(frozen=True)
class Cell:
    """One run."""

    suspects: int
    least: int
    """Jobs at work at once …"""
    when: float
    """… so many seconds after those on their last chance had come: the first such look."""
    near: int
    """The same, of looks from when they came until a lease after the last of them had started."""
    mean: float
    short: int
    """Looks that found fewer than nine tenths of the slots at work …"""
    looks: int
    """… of so many."""
    beside: int
    """Jobs that ran in a process together with one on its last chance, when that was started."""
    processes: int
    """Those that ran jobs on their last chance."""
    first: float | None
    """Seconds until the first of them was started …"""
    last: float | None
    """… and the last."""


@dataclass(frozen=True)
class Step:
    """A job has started (1) or ended (-1)."""

    at: float
    change: int
    suspect: bool
    process: str


async def measure(store: Fresh, plan: Plan, suspects: int, folder: Path) -> Cell:
    """One fleet, and so many jobs on their last chance."""
    app, rng = App(store.url), random.Random(7)
    task = app.task(name="work")(chances_jobs.work.function)
    whole = plan.workers * plan.slots
    async with app:
        backend = await app.client.backend()
        aside = task.options(queue=_ASIDE, priority=-1)
        rows = [app.client.packer.pack(aside.job(_length(plan, rng), True)) for _ in range(suspects)]
        ids = await _lose(backend, rows, app.client.clock.now())
        await app.enqueue_many([task.job(_length(plan, rng)) for _ in range(plan.jobs)])
        with _fleet(store.url, plan, folder) as running:
            await _until(lambda: _busy(read(folder)) >= whole, running)
            await asyncio.sleep(plan.settle)
            came = time.monotonic()
            if ids:
                await backend.alter(Selector(ids=ids), Move("default"))
            await _until(lambda: _ended(read(folder)) == plan.jobs + suspects, running)
    return judge(read(folder), whole, suspects, came)


def _length(plan: Plan, rng: random.Random) -> float:
    return plan.seconds * rng.uniform(0.5, 1.5)


async def _lose(backend: Backend, rows: Sequence[Row], now: int) -> list[JobId]:
    """Jobs that vanished workers have lost so often that one more loss is the last."""
    if rows:
        await backend.insert(rows, now)
    for n in range(_LOST if rows else 0):
        claimed = await backend.claim(Claim("gone", (_ASIDE,), len(rows), 1), now + n)
        if len(claimed.jobs) != len(rows):
            raise RuntimeError(f"{len(claimed.jobs)} of {len(rows)} jobs could be claimed")
        await backend.reap(Reap(max_lost=10), now + n + 1)
    return [row.id for row in rows]


@contextmanager
def _fleet(url: str, plan: Plan, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Workers from the command line."""
    place = f"{chances_jobs.__file__}:app"
    sizes = ["--processes", str(plan.workers), "--concurrency", str(plan.slots)]
    command = [sys.executable, "-m", "headrace.cli", "worker", place, *sizes, "--log-level", "warning"]
    more = {"HEADRACE_URL": url, chances_jobs.BOOKS: str(folder)}
    process = subprocess.Popen(command, env=os.environ | more)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_PATIENCE)


async def _until(reached: Callable[[], bool], running: subprocess.Popen[bytes]) -> None:
    while not reached():
        if running.poll() is not None:
            raise RuntimeError(f"the workers ended with exit code {running.returncode}")
        await asyncio.sleep(0.25)


def read(folder: Path) -> list[Step]:
    """All books, in the order of time."""
    steps = []
    for book in folder.iterdir():
        for line in book.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                at, change, suspect = line.split()
                steps.append(Step(float(at), int(change), suspect == "1", book.name))
    return sorted(steps, key=lambda step: step.at)


def _busy(steps: Sequence[Step]) -> int:
    return sum(step.change for step in steps)


def _ended(steps: Sequence[Step]) -> int:
    return sum(step.change < 0 for step in steps)


def judge(steps: Sequence[Step], whole: int, suspects: int, came: float) -> Cell:
    """What the books say."""
    counts = list(accumulate(step.change for step in steps))
    times = [step.at for step in steps]
    begin = next(at for at, count in zip(times, counts, strict=True) if count >= whole)
    end = max(step.at for step in steps if step.change > 0 and not step.suspect)
    looks = [counts[bisect_right(times, begin + n * _LOOK) - 1] for n in range(max(1, int((end - begin) / _LOOK)))]
    least = min(looks)
    starts = [i for i, step in enumerate(steps) if step.suspect and step.change > 0]
    beside = [sum(one.change for one in steps[:i] if one.process == steps[i].process) for i in starts]
    until = (times[starts[-1]] if starts else came) + _LEASE
    near = [count for n, count in enumerate(looks) if came <= begin + n * _LOOK <= until]
    return Cell(
        suspects,
        least,
        round(begin + looks.index(least) * _LOOK - came, 1),
        min(near, default=least),
        round(sum(looks) / len(looks), 1),
        sum(count < whole * 9 // 10 for count in looks),
        len(looks),
        max(beside, default=0),
        len({steps[i].process for i in starts}),
        round(steps[starts[0]].at - came, 1) if starts else None,
        round(steps[starts[-1]].at - came, 1) if starts else None,
    )


def table(store: str, cells: Sequence[Cell]) -> str:
    """The cells for people."""
    head = (
        "last chances",
        "least at work",
        "at s",
        "near them",
        "mean",
        "looks below 9/10",
        "of",
        "beside",
        "processes",
        "first s",
        "last s",
    )
    rows: list[Sequence[str]] = [(store, *head)]
    rows += [("", *("-" if value is None else f"{value:,}" for value in asdict(cell).values())) for cell in cells]
    return "\n".join(aligned(rows))


def verdict(cells: Sequence[Cell], slots: int) -> str:
    """Whether the slots stayed at work while jobs on their last chance came."""
    goal, least = 0.9 * slots, min(cell.near for cell in cells)
    if least >= goal:
        return GOOD if min(cell.least for cell in cells) >= goal else NEAR
    usual = min((cell.near for cell in cells if not cell.suspects), default=goal)
    return BUSY if least >= usual else IDLE


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.chances", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it works")
    parser.add_argument("--store", action="append", choices=STORES, help="only this one; may be repeated")
    parser.add_argument("--suspects", type=int, action="append", help="only so many; may be repeated")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else Plan()
    machine = facts(Path(tempfile.gettempdir()))
    found = []
    with Servers(None, None) as servers:
        for store in given.store or STORES:
            cells = []
            for suspects in given.suspects or plan.suspects:
                with fresh(store, servers) as place, tempfile.TemporaryDirectory() as folder:
                    cells.append(asyncio.run(measure(place, plan, suspects, Path(folder))))
            keep(given.output, store, machine, [{"kind": "cell", **asdict(cell)} for cell in cells])
            print(table(store, cells), flush=True)
            found.append(verdict(cells, plan.workers * plan.slots))
            print(f"{store}: {found[-1]}", flush=True)
    return 1 if IDLE in found else 0


if __name__ == "__main__":
    sys.exit(main())
