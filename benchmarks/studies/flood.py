"""Half a million jobs that all fail: how many dead letters there are at any moment, what a claim takes meanwhile, when
somebody is told, and whether the dead letters of others stay.

``python -m benchmarks.studies.flood`` runs on every store with 500,000 jobs, 12 workers and a bound of 10,000 dead
letters; that takes some minutes for each. ``--quick`` takes some seconds. Dead letters are to be at most 1.1 times
their bound at every moment, the 99th percentile of a claim at most twice that beside jobs that complete, and the alert
is to come within ten seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.metrics.metric import percentile
from benchmarks.results import HOME, aligned
from benchmarks.studies.stores import STORES, fresh, keep
from headrace import App, Event, connect, never
from headrace.api.connection import open_backend
from headrace.errors import Unavailable
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Row, Selector
from headrace.types import JobState

OUTPUT = HOME / "flood.jsonl"
OVER = 1.1
FACTOR = 2.0
SOON = 10.0
_DAY = 86_400_000_000
_QUIET = 20
"""Dead letters of each tenant that has few."""
_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    jobs: int = 500_000
    others: int = 50_000
    """Jobs that complete, before."""
    bound: int = 10_000
    tenants: int = 50
    """Others, which have a few dead letters each."""
    probes: int = 50_000
    workers: int = 12
    """Processes, of which each makes room for itself."""


QUICK = Plan(jobs=3_000, others=1_000, bound=500, tenants=5, probes=2_000, workers=2)


@dataclass(frozen=True)
class Found:
    """What a flood did on one store."""

    jobs: int
    bound: int
    most: int
    """Dead letters at any moment."""
    looks: int
    others_kept: int
    others_had: int
    before_p99: float
    flood_p99: float
    """Milliseconds of a claim."""
    told_after: float
    """Seconds from when the bound was reached."""
    seconds: float
    kind: str = "flood"

    @property
    def faults(self) -> list[str]:
        """What is not as it is to be."""
        checks = (
            (self.most > OVER * self.bound, f"there were {self.most:,} dead letters, with a bound of {self.bound:,}"),
            (
                self.others_kept < self.others_had,
                f"others kept {self.others_kept:,} of {self.others_had:,} dead letters",
            ),
            (
                self.flood_p99 > FACTOR * self.before_p99,
                f"the 99th percentile of a claim was {self.flood_p99:.1f} ms, and {self.before_p99:.1f} ms before",
            ),
            (self.told_after > SOON, f"the alert came after {self.told_after:.1f} s"),
        )
        return [sentence for bad, sentence in checks if bad]


def make(url: str, bound: int) -> App:
    """Two tasks, of which one always fails."""
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    client = connect(url, retention={"failed": {"count": bound}, "completed": {"count": 1_000}})
    app = App(client)

    @app.task(name="fail", queue="work", retry=never())
    async def fail(number: int) -> None:
        raise ValueError("as always")

    @app.task(name="succeed", queue="work")
    async def succeed(number: int) -> None:
        return None

    return app


def _drain(url: str, bound: int, told: Any) -> None:
    """A worker process, until there is nothing left."""
    app = make(url, bound)

    def hear(event: Event) -> None:
        if event.alert == "dead_letters_full":
            told.put(time.time())

    app.observe(hear)

    async def work() -> None:
        async with app:
            await app.drain()

    asyncio.run(work())


async def _fill(app: App, task: str, jobs: int, tenant: str) -> None:
    found: Any = app.tasks[task]
    for start in range(0, jobs, 1_000):
        await app.enqueue_many(
            [found.options(tenant=tenant).job(number) for number in range(start, min(start + 1_000, jobs))]
        )


class Watch:
    """Counts dead letters and times claims, while workers work."""

    def __init__(self, backend: Backend, bound: int) -> None:
        self._backend = backend
        self._bound = bound
        self.most = self.looks = 0
        self.reached: float | None = None
        self.took: list[float] = []

    async def until(self, processes: Sequence[Any]) -> None:
        """Look until they have ended."""
        while any(process.is_alive() for process in processes):
            began = time.perf_counter()
            with suppress(Unavailable):  # on a machine that is too busy; the time counts
                await self._backend.claim(Claim("probe", ("probe",), 1, _DAY))
            self.took.append((time.perf_counter() - began) * 1e3)
            try:
                count = await dead_letters(self._backend)
            except Unavailable:
                continue
            self.most, self.looks = max(self.most, count), self.looks + 1
            if self.reached is None and count >= self._bound * 0.99:
                self.reached = time.time()
            await asyncio.sleep(0.01)


async def dead_letters(backend: Backend) -> int:
    """How many there are now."""
    return next((one.count for one in (await backend.stats()).kept if one.target == "failed"), 0)


async def measure(url: str, plan: Plan) -> Found:
    """A flood on one store, after jobs that complete."""
    app = make(url, plan.bound)
    backend = open_backend(url)
    await backend.open()
    told = _spawn.Queue()
    async with app:
        for start in range(0, plan.probes, 1_000):
            await backend.insert([Row(_id(n), "probe", "probe", {}) for n in range(start, start + 1_000)])
        for tenant in range(plan.tenants):
            await _fill(app, "fail", _QUIET, f"quiet-{tenant}")
        await app.drain()
        await _fill(app, "succeed", plan.others, "noisy")
        before = await _worked(url, plan, backend, told)
        await _fill(app, "fail", plan.jobs, "noisy")
        began = time.perf_counter()
        flood = await _worked(url, plan, backend, told)
        seconds = time.perf_counter() - began
        kept = [await _kept(backend, f"quiet-{tenant}") for tenant in range(plan.tenants)]
    await backend.close()
    first = told.get(timeout=10)
    return Found(
        plan.jobs, plan.bound, flood.most, flood.looks, sum(kept), plan.tenants * _QUIET,
        percentile(before.took, 0.99), percentile(flood.took, 0.99),
        max(0.0, first - (flood.reached or first)), seconds,
    )  # fmt: skip


async def _worked(url: str, plan: Plan, backend: Backend, told: Any) -> Watch:
    processes = [_spawn.Process(target=_drain, args=(url, plan.bound, told)) for _ in range(plan.workers)]
    for process in processes:
        process.start()
    watch = Watch(backend, plan.bound)
    await watch.until(processes)
    for process in processes:
        process.join()
    return watch


def _id(number: int) -> bytes:
    return (time.time_ns() // 1_000_000).to_bytes(6, "big") + bytes.fromhex(f"7000800000{number:010x}")


async def _kept(backend: Backend, tenant: str) -> int:
    page = await backend.scan(Selector(tenant=tenant, states=frozenset((JobState.FAILED,))), limit=1_000)
    found = len(page.records)
    while page.after is not None:
        page = await backend.scan(Selector(tenant=tenant, states=frozenset((JobState.FAILED,))), page.after, 1_000)
        found += len(page.records)
    return found


def table(found: dict[str, Found]) -> str:
    """What people read."""
    head = ["store", "jobs", "bound", "most", "others' kept", "claim p99 before", "in the flood", "told after", "took"]
    rows = [
        [
            store, f"{one.jobs:,}", f"{one.bound:,}", f"{one.most:,}", f"{one.others_kept:,} of {one.others_had:,}",
            f"{one.before_p99:.1f} ms", f"{one.flood_p99:.1f} ms", f"{one.told_after:.1f} s", f"{one.seconds:.0f} s",
        ]
        for store, one in found.items()
    ]  # fmt: skip
    return "\n".join(aligned([head, *rows]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.flood", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--jobs", type=int, help="that fail")
    parser.add_argument("--workers", type=int, help="processes that work")
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--place", type=Path, help="where the stores' files are")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else Plan()
    plan = replace(plan, jobs=given.jobs or plan.jobs, workers=given.workers or plan.workers)
    found = {}
    with Servers(given.place, None) as servers:
        for store in given.store or STORES:
            with fresh(store, servers, given.place) as place:
                found[store] = asyncio.run(measure(place.url, plan))
            print(table({store: found[store]}), flush=True)
            keep(given.output, store, facts(given.place or Path(tempfile.gettempdir())), [asdict(found[store])])
    print(table(found))
    told = [f"{store}: {sentence}" for store, one in found.items() for sentence in one.faults]
    print("\n".join(told or ["as it is to be"]))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
