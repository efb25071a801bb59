"""Many claimers of one queue on PostgreSQL: a queue whose tenants take turns beside a plain one.

``python -m benchmarks.studies.claimers`` takes five minutes; ``--quick`` some seconds. Each claimer ends what it has
and claims again, in one call. The two kinds of queue are measured by turns. Beside jobs a second it tells the CPU time
of a job, on the server and in the clients: on a machine that does other things too, claims that go one after the other
get one share of it and claims side by side get many, so that seconds say little there, and CPU time says what a quiet
machine could do. To be reached is 0.7 of the plain queue by the clock; where only CPU time says so, that is told.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.results import HOME, aligned
from benchmarks.studies.stores import Fresh, fresh, keep
from headrace.backends.postgres import PostgresBackend
from headrace.seam.policy import Policy
from headrace.seam.records import Claim, JobId, Leased, Row, Settlement
from headrace.types import JobState

OUTPUT = HOME / "claimers.jsonl"
_LEASE = 600_000_000
_WARM = 8
_FILL = 1_000
GOAL = 0.7
_LIMIT = 600.0
"""Seconds that the others wait for one that has failed."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    claimers: int = 16
    processes: int = 2
    tenants: int = 1_000
    jobs: int = 60_000
    seconds: float = 5.0
    times: int = 5
    batches: tuple[int, ...] = (10, 50, 200)


QUICK = Plan(claimers=4, tenants=20, jobs=4_000, seconds=0.5, times=1, batches=(10,))


@dataclass(frozen=True)
class Cell:
    """One kind of queue, claimed from in batches of one size; medians."""

    queue: str
    batch: int
    rate: float
    """Jobs a second."""
    server: float
    """Microseconds of CPU that a job cost the server."""
    clients: float
    """And all clients."""
    kind: str = "claimers"

    @property
    def cpu(self) -> float:
        return self.server + self.clients


def _id(number: int) -> JobId:
    return (time.time_ns() // 1_000_000).to_bytes(6, "big") + bytes.fromhex(f"7000800000{number:010x}")


async def _fill(url: str, plan: Plan, governed: bool) -> None:
    store = PostgresBackend(url, listen=False)
    await store.open()
    if governed:
        await store.policies.save(Policy(queue="q", tenant_batch=10))
    for start in range(0, plan.jobs, _FILL):
        numbers = range(start, start + _FILL)
        await store.insert([Row(_id(n), "q", "t", {}, tenant=f"t{n % plan.tenants}") for n in numbers])
    for _ in range(plan.jobs // _FILL * 2):  # each brings as many into turns as it has time for
        await store.claim(Claim("h", ("q",), 0, _LEASE))
    await store.close()


class _Claimer:
    """Ends what it has and claims again."""

    def __init__(self, store: PostgresBackend, name: str, batch: int) -> None:
        self._store = store
        self._name = name
        self._claim = Claim(name, ("q",), batch, _LEASE)
        self._held: Sequence[Leased] = ()
        self.jobs = 0

    async def go(self) -> bool:
        ends = [Settlement(job.id, job.epoch, self._name, JobState.COMPLETED) for job in self._held]
        _, claimed = await self._store.finish_and_claim(ends, self._claim)
        self._held = claimed.jobs
        self.jobs += len(ends)
        return bool(claimed.jobs)

    async def go_until(self, end: float) -> None:
        while time.perf_counter() < end and await self.go():
            pass


def _child(
    url: str, names: Sequence[str], batch: int, seconds: float, told: Queue[tuple[int, ...]], gate: Barrier
) -> None:
    async def run() -> None:
        stores = [PostgresBackend(url, migrate=False, listen=False, size=1) for _ in names]
        claimers = [_Claimer(store, name, batch) for store, name in zip(stores, names, strict=True)]
        for store, claimer in zip(stores, claimers, strict=True):
            await store.open()
            for _ in range(_WARM):
                await claimer.go()
            claimer.jobs = 0
        gate.wait()
        gate.wait()
        cpu, began = time.process_time_ns(), time.perf_counter_ns()
        await asyncio.gather(*(claimer.go_until(time.perf_counter() + seconds) for claimer in claimers))
        told.put((sum(c.jobs for c in claimers), time.process_time_ns() - cpu, time.perf_counter_ns() - began))
        gate.wait()
        for store in stores:
            await store.close()

    asyncio.run(run())


def _measure(store: Fresh, plan: Plan, governed: bool, batch: int) -> Cell:
    asyncio.run(_fill(store.url, plan, governed))
    store.settle()
    fork = multiprocessing.get_context("fork")
    told: Queue[tuple[int, ...]] = fork.Queue()
    gate = fork.Barrier(plan.processes + 1, timeout=_LIMIT)
    shares = [[f"h{n}" for n in range(start, plan.claimers, plan.processes)] for start in range(plan.processes)]
    children = [
        fork.Process(target=_child, args=(store.url, names, batch, plan.seconds, told, gate)) for names in shares
    ]
    for child in children:
        child.start()
    gate.wait()
    cpu = store.cpu()
    gate.wait()
    jobs, used, took = zip(*(told.get(timeout=_LIMIT) for _ in children), strict=True)
    cpu = store.cpu() - cpu
    gate.wait()
    for child in children:
        child.join()
    done = max(sum(jobs), 1)
    return Cell(
        "turns" if governed else "plain", batch, done / (max(took) / 1e9), cpu * 1e6 / done, sum(used) / 1e3 / done
    )


def study(servers: Servers, plan: Plan) -> list[Cell]:
    """Both kinds of queue at each size, by turns."""
    cells = []
    for batch in plan.batches:
        found: dict[bool, list[Cell]] = {False: [], True: []}
        for _ in range(plan.times):
            for governed, some in found.items():
                with fresh("postgres", servers) as store:
                    some.append(_measure(store, plan, governed, batch))
        cells += [
            replace(
                some[0],
                rate=median(cell.rate for cell in some),
                server=median(cell.server for cell in some),
                clients=median(cell.clients for cell in some),
            )
            for some in found.values()
        ]
    return cells


def wrong(cells: Sequence[Cell]) -> list[str]:
    """What is not reached."""
    plain = {cell.batch: cell for cell in cells if cell.queue == "plain"}
    return [
        f"trips of {cell.batch}: {best:.2f} of the plain queue"
        for cell in cells
        if (best := max(cell.rate / plain[cell.batch].rate, plain[cell.batch].cpu / cell.cpu)) < GOAL
    ]


def reached(cells: Sequence[Cell]) -> str:
    """What is to be said if nothing is wrong."""
    plain = {cell.batch: cell for cell in cells if cell.queue == "plain"}
    slow = [
        f"of {cell.batch} ({share:.2f} by the clock)"
        for cell in cells
        if (share := cell.rate / plain[cell.batch].rate) < GOAL
    ]
    return f"turns give at least {GOAL} of the plain queue" + (
        f"; by CPU time alone in trips {', '.join(slow)}: to be repeated on a quiet machine" if slow else ""
    )


def table(cells: Sequence[Cell]) -> str:
    """What people read."""
    rows = [["batch", "queue", "jobs/s", "of plain", "CPU of a job: server", "clients", "of plain"]]
    for cell in cells:
        [plain] = [one for one in cells if one.batch == cell.batch and one.queue == "plain"]
        rate, cpu = f"{cell.rate / plain.rate:.2f}", f"{plain.cpu / cell.cpu:.2f}"
        costs = f"{cell.server:.0f} µs", f"{cell.clients:.0f} µs"
        rows.append([str(cell.batch), cell.queue, f"{cell.rate:,.0f}", rate, *costs, cpu])
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.claimers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--times", type=int, help="how often each is measured; the median counts")
    parser.add_argument("--batch", type=int, action="append", help="jobs of a claim; may be repeated")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else Plan()
    plan = replace(plan, times=given.times or plan.times, batches=tuple(given.batch or plan.batches))
    with Servers(None, None) as servers:
        cells = study(servers, plan)
    print(table(cells))
    keep(given.output, "postgres", facts(Path(tempfile.gettempdir())), [asdict(cell) for cell in cells])
    print("\n".join(wrong(cells)) or reached(cells))
    return 1 if wrong(cells) else 0


if __name__ == "__main__":
    sys.exit(main())
