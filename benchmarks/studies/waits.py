"""How long light tenants wait beside a heavy one, under a load that does not care whether anybody keeps up.

``python -m benchmarks.studies.waits URL FILE SLOTS`` is one worker of it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.machine import Load
from benchmarks.metrics.metric import percentile
from benchmarks.results import aligned, shown
from benchmarks.studies.stores import fresh
from benchmarks.studies.tenants import HEAVY, QUEUE, RULES, name
from headrace import App, Job

SITUATIONS = ("alone", "beside the heavy one", "beside its bursts")
_HANDLER = 0.05
"""Seconds of a job."""
_TICK = 0.02
_PIECE = 200
_PATIENCE = 60.0


@dataclass(frozen=True)
class Plan:
    """How much is asked for."""

    tenants: int = 1_000
    rate: float = 1.0
    """Jobs a second of each light tenant …"""
    load: int = 100
    """… and as many times that of the heavy one."""
    workers: int = 4
    slots: int = 25
    seconds: float = 75.0
    warm: float = 5.0
    """Jobs of the first seconds do not count."""
    burst: float = 30.0
    """The load of so many seconds comes at once, every so many seconds."""
    times: int = 3

    @property
    def share(self) -> float:
        """What the light tenants take of all slots."""
        return (self.tenants - 1) * self.rate * _HANDLER / (self.workers * self.slots)


QUICK = Plan(tenants=20, rate=5.0, load=20, workers=2, slots=5, seconds=3.0, warm=1.0, burst=1.0, times=1)


@dataclass(frozen=True)
class Cell:
    """The light tenants in one situation, once. Milliseconds."""

    situation: str
    governed: bool
    light: int
    """Jobs that count."""
    heavy: int
    p50: float
    p99: float
    most: float
    heavy_p99: float
    late: float
    """By how much the load came later than it should, in 99 of 100 ticks at most."""
    foreign: float


def study(store: str, servers: Servers, plan: Plan, place: Path | None = None) -> list[Cell]:
    """Governed queues in every situation, ``times`` over; plain ones for comparison, once."""
    cells = []
    for number in range(plan.times):
        for governed in (True, False) if number == 0 else (True,):
            for situation in SITUATIONS:
                with fresh(store, servers, place) as at:
                    before = Load.now(at.cpu())
                    light, heavy, late = measure(at.url, plan, situation, governed, Random(number))
                    foreign = Load.now(at.cpu()).foreign_since(before)
                    cells.append(_cell(situation, governed, light, heavy, late, foreign))
    return cells


def _cell(
    situation: str, governed: bool, light: Sequence[float], heavy: Sequence[float], late: float, foreign: float
) -> Cell:
    return Cell(
        situation,
        governed,
        len(light),
        len(heavy),
        percentile(light, 0.5) * 1e3,
        percentile(light, 0.99) * 1e3,
        max(light) * 1e3,
        percentile(heavy, 0.99) * 1e3 if heavy else 0.0,
        late * 1e3,
        foreign,
    )


def measure(
    url: str, plan: Plan, situation: str, governed: bool, rng: Random
) -> tuple[list[float], list[float], float]:
    """The waits of light and heavy jobs in seconds, and how late the load was."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_prepare(url, governed))
        with _workers(url, Path(folder), plan):
            began, late = asyncio.run(_produce(url, plan, situation, rng))
        runs = [json.loads(line) for path in Path(folder).iterdir() for line in path.read_text().splitlines()]
    counted = [(tenant, wait) for tenant, run_at, wait in runs if run_at >= began + plan.warm]
    light = [wait for tenant, wait in counted if tenant != HEAVY]
    return light, [wait for tenant, wait in counted if tenant == HEAVY], late


async def _prepare(url: str, governed: bool) -> None:
    async with App(url) as app:
        if governed:
            await app.policies.set(QUEUE, **RULES)


@contextmanager
def _workers(url: str, folder: Path, plan: Plan) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.studies.waits", url]
    started = [
        subprocess.Popen([*command, str(folder / f"{number}.txt"), str(plan.slots)], cwd=Path(__file__).parents[2])
        for number in range(plan.workers)
    ]
    try:
        yield
        for worker in started:
            worker.terminate()
        if any(worker.wait(_PATIENCE) for worker in started):
            raise RuntimeError("a worker came to a bad end")
    finally:
        for worker in started:
            if worker.poll() is None:
                worker.kill()
                worker.wait()


def _handler(app: App, noted: list[tuple[int, float, float]]) -> Any:
    @app.task(name="sleep", queue=QUEUE)
    async def sleep(job: Job[Any], tenant: int) -> None:
        run_at = job.run_at.timestamp()
        noted.append((tenant, run_at, time.time() - run_at))
        await asyncio.sleep(_HANDLER)

    return sleep


async def _produce(url: str, plan: Plan, situation: str, rng: Random) -> tuple[float, float]:
    """The whole load; when it began, by the clock on the wall, and how late it was."""
    app = App(url)
    task = _handler(app, [])
    async with app, asyncio.TaskGroup() as group:
        while len((await app.client.stats()).workers) < plan.workers:
            await asyncio.sleep(_TICK)
        began, start = time.time(), time.monotonic()
        lateness = []
        for instant, tenants in arrivals(plan, situation, rng):
            await asyncio.sleep(max(0.0, start + instant - time.monotonic()))
            lateness.append(time.monotonic() - start - instant)
            group.create_task(_insert(app, task, tenants))
        end = time.monotonic() + _PATIENCE
        while any(queue.available + queue.running for queue in (await app.client.stats()).queues):
            if time.monotonic() > end:
                raise RuntimeError(
                    f"the load was not done {_PATIENCE:g} s after its end; this machine needs a lower rate"
                )
            await asyncio.sleep(_TICK)
    return began, percentile(lateness, 0.99)


async def _insert(app: App, task: Any, tenants: Sequence[int]) -> None:
    """In pieces, so that a burst keeps nobody from coming meanwhile."""
    for start in range(0, len(tenants), _PIECE):
        piece = tenants[start : start + _PIECE]
        await app.client.insert([task.options(tenant=name(tenant)).job(tenant) for tenant in piece])


def arrivals(plan: Plan, situation: str, rng: Random) -> Iterator[tuple[float, list[int]]]:
    """Whose jobs come when, tick by tick: light ones by chance, the heavy one's so or in bursts."""
    light, heavy = (plan.tenants - 1) * plan.rate, plan.load * plan.rate
    next_light, next_heavy = rng.expovariate(light), rng.expovariate(heavy)
    burst_at = plan.warm + plan.burst / 6
    for tick in range(int(plan.seconds / _TICK)):
        instant = tick * _TICK
        found = []
        while next_light <= instant:
            found.append(rng.randrange(1, plan.tenants))
            next_light += rng.expovariate(light)
        while situation == SITUATIONS[1] and next_heavy <= instant:
            found.append(HEAVY)
            next_heavy += rng.expovariate(heavy)
        if found:
            yield instant, found
        if situation == SITUATIONS[2] and burst_at <= instant:
            yield instant, [HEAVY] * int(plan.burst * heavy)
            burst_at += plan.burst


def table(cells: Sequence[Cell]) -> str:
    """The cells for people; of several times each, the median of p99 counts."""
    rows: list[Sequence[str]] = [
        (
            "queue",
            "light tenants",
            "jobs",
            "p50 ms",
            "p99 ms",
            "most ms",
            "of alone",
            "heavy p99 ms",
            "load late ms",
            "others",
        )
    ]
    alone = {governed: p99(cells, SITUATIONS[0], governed) for governed in (True, False)}
    for cell in cells:
        rows.append(
            (
                "governed" if cell.governed else "plain",
                cell.situation,
                f"{cell.light:,}",
                shown(cell.p50),
                shown(cell.p99),
                shown(cell.most),
                f"{cell.p99 / alone[cell.governed]:.2f}",
                shown(cell.heavy_p99) if cell.heavy else "",
                shown(cell.late),
                f"{cell.foreign:.1f}",
            )
        )
    for situation in SITUATIONS[1:]:
        ratio = p99(cells, situation, True) / alone[True]
        rows.append(
            ("governed", situation, "median", "", shown(p99(cells, situation, True)), "", f"{ratio:.2f}", "", "", "")
        )
    return "\n".join(aligned(rows))


def p99(cells: Sequence[Cell], situation: str, governed: bool) -> float:
    """The median of all times."""
    return percentile([cell.p99 for cell in cells if (cell.situation, cell.governed) == (situation, governed)], 0.5)


def main() -> None:
    url, file, slots = sys.argv[1:]
    app = App(url, worker={"concurrency": int(slots), "name": "random"})
    noted: list[tuple[int, float, float]] = []
    _handler(app, noted)
    app.run()
    Path(file).write_text("".join(json.dumps(each) + "\n" for each in noted))


if __name__ == "__main__":
    main()
