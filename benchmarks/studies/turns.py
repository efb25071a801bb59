"""What it costs, and what it brings, that tenants take turns: the same jobs from a plain queue and a governed one."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.machine import Load
from benchmarks.results import aligned, shown
from benchmarks.studies.stores import Fresh, fresh
from benchmarks.studies.tenants import QUEUE, RULES, Crowd, name
from headrace import App, JobState
from headrace.seam.records import Claim, Settlement

WAYS = ("worker", "waist")
"""A worker with a handler that does nothing; and nothing but claims and completions, one trip for both."""
_BATCH = 100
_LEASE = 600_000_000
_CHUNK = 1_000


@dataclass(frozen=True)
class Drained:
    """One queue that was emptied."""

    seconds: float
    cpu: float
    """Seconds, the server's included."""
    foreign: float
    """Cores that others kept busy meanwhile."""
    order: Sequence[int]
    """Whose jobs were started, one after the other."""


@dataclass(frozen=True)
class Cell:
    """One way to empty one kind of queue, several times."""

    way: str
    governed: bool
    jobs: int
    rates: Sequence[float]
    """Jobs a second."""
    cpu: Sequence[float]
    """Microseconds per job."""
    foreign: Sequence[float]
    evenness: float
    """Jain's index among equals, over the first half of all jobs."""
    heavy_share: float
    """The heavy tenant's part in that half."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def study(store: str, servers: Servers, crowd: Crowd, times: int, place: Path | None = None) -> list[Cell]:
    """Both kinds of queue in turns."""
    found: dict[tuple[str, bool], list[Drained]] = {(way, kind): [] for way in WAYS for kind in (False, True)}
    for time_ in range(times):
        for way in WAYS:
            for governed in (False, True) if time_ % 2 == 0 else (True, False):
                with fresh(store, servers, place) as at:
                    found[way, governed].append(asyncio.run(_measure(way, at, crowd, governed)))
    return [_cell(way, governed, crowd, rounds) for (way, governed), rounds in found.items()]


def _cell(way: str, governed: bool, crowd: Crowd, rounds: Sequence[Drained]) -> Cell:
    return Cell(
        way,
        governed,
        crowd.jobs,
        [crowd.jobs / each.seconds for each in rounds],
        [each.cpu / crowd.jobs * 1e6 for each in rounds],
        [each.foreign for each in rounds],
        statistics.median(crowd.evenness(each.order) for each in rounds),
        statistics.median(crowd.heavy_share(each.order) for each in rounds),
    )


async def _measure(way: str, at: Fresh, crowd: Crowd, governed: bool) -> Drained:
    app = App(at.url)
    order: list[int] = []

    @app.task(name="nothing", queue=QUEUE)
    async def nothing(tenant: int) -> None:
        order.append(tenant)

    async with app:
        if governed:
            await app.policies.set(QUEUE, **RULES)
        task: Any = nothing
        waiting = crowd.in_order()
        for start in range(0, len(waiting), _CHUNK):
            chunk = waiting[start : start + _CHUNK]
            await app.client.insert([task.options(tenant=name(tenant)).job(tenant) for tenant in chunk])
        at.settle()
        drained = await _timed(at, app.drain if way == "worker" else lambda: _empty(app, order), order)
    if sorted(order) != sorted(waiting):
        raise RuntimeError(f"{len(waiting)} jobs waited, but {len(order)} were started")
    return drained


async def _timed(at: Fresh, empty: Callable[[], Awaitable[None]], order: Sequence[int]) -> Drained:
    load, used, began = Load.now(at.cpu()), time.process_time() + at.cpu(), time.perf_counter()
    await empty()
    seconds, cpu = time.perf_counter() - began, time.process_time() + at.cpu() - used
    return Drained(seconds, cpu, Load.now(at.cpu()).foreign_since(load), order)


async def _empty(app: App, order: list[int]) -> None:
    """Claims and completions by one holder, until there is nothing more."""
    backend = await app.client.backend()
    request = Claim("holder", (QUEUE,), _BATCH, _LEASE)
    done: list[Settlement] = []
    while True:
        if backend.finish_and_claim is not None:
            _, claimed = await backend.finish_and_claim(done, request)
        else:
            await backend.finish(done)
            claimed = await backend.claim(request)
        if not claimed.jobs:
            return
        order += [int(job.tenant.rpartition("-")[2]) for job in claimed.jobs]
        done = [Settlement(job.id, job.epoch, "holder", JobState.COMPLETED) for job in claimed.jobs]


def table(cells: Sequence[Cell]) -> str:
    """The cells for people, each governed queue beside the plain one."""
    rows: list[Sequence[str]] = [
        (
            "by a",
            "queue",
            "jobs/s",
            "of plain",
            "µs CPU/job",
            "others busy",
            "Jain, first half",
            "heavy's part",
            "values",
        )
    ]
    plain = {cell.way: cell.rate for cell in cells if not cell.governed}
    for cell in cells:
        rows.append(
            (
                cell.way,
                "governed" if cell.governed else "plain",
                shown(cell.rate),
                f"{cell.rate / plain[cell.way]:.2f}" if cell.governed else "",
                shown(statistics.median(cell.cpu)),
                f"{statistics.median(cell.foreign):.1f}",
                f"{cell.evenness:.3f}",
                f"{cell.heavy_share:.1%}",
                " ".join(map(shown, cell.rates)),
            )
        )
    return "\n".join(aligned(rows))
