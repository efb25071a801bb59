"""Costs that stay flat whatever users choose: claims and inserts beside 1 and 60,000 priorities, 100,000 tenants,
10,000 queues or groups, two dozen idle workers; and on PostgreSQL, many producers: of transactions that store a job,
while others listen, and of jobs of groups.

``python -m benchmarks.studies.flat`` takes some minutes on one store; ``--quick`` a minute, with sizes a twentieth of
these. A line is flat when the 99th percentile of each call is at most twice that of the smallest size, and no call
keeps the server busy for longer than 50 ms; or, where a slow machine takes longer at the smallest size too, for twice
as long as there. Beside it stands what the store itself counts, which the load of the machine hardly changes: pages
that PostgreSQL touched, CPU time of Valkey's one thread, steps of SQLite's machine. A call that takes longer while its
store does not do more is told as noise, and counts as flat. Of calls that name, or answer, as many things as there are,
only the bound counts, and that is told too. All sizes of a line are filled first and then asked in turns, so that
noise hits them alike.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.fleet import Servers
from benchmarks.machine import facts
from benchmarks.metrics.metric import percentile
from benchmarks.results import HOME, aligned, shown
from benchmarks.studies import flat_crowds, flat_producers
from benchmarks.studies.flat_crowds import Crowd
from benchmarks.studies.flat_lines import Filled, Line, lines
from benchmarks.studies.flat_meters import Meter, metered
from benchmarks.studies.stores import STORES, Fresh, fresh, keep
from headrace import App

OUTPUT = HOME / "flat.jsonl"
FACTOR = 2.0
NOISE = 1.5
"""Up to so many times the effort, a longer time is not the store's."""
BOUND = 50.0
"""Milliseconds."""
_CHUNK = 1_000


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    scale: float = 1.0
    rounds: int = 5
    calls: int = 50
    """Of each kind, in each round."""
    patience: float = 120.0
    """Seconds for the fill of one store, and for all rounds of one size."""
    trickle: int = 20
    jobs: int = 20_000
    times: int = 3
    workers: int = flat_crowds.WORKERS
    claimers: int = flat_crowds.CLAIMERS
    seconds: float = 10.0
    """Of each kind of producers."""


QUICK = Plan(0.05, 3, 20, 20.0, 5, 2_000, 1, seconds=1.0)


@dataclass(frozen=True)
class Cell:
    """One call beside so many of something. Milliseconds, and efforts per call."""

    line: str
    call: str
    size: int
    calls: int
    p50: float
    p99: float
    effort: float
    unit: str
    slowest: float
    """At the server; in SQLite, of CPU time."""
    times: float = 1.0
    """Of the smallest size: the p99 …"""
    effort_times: float = 1.0
    """… and the effort."""
    flat: bool = True
    note: str = ""


@dataclass
class _Taken:
    """What one kind of call took in one store."""

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    """Of each round."""
    efforts: list[float] = field(default_factory=list)
    slowest: float = 0.0
    calls: int = 0


class _Side:
    """One size of a line: a store that is filled and asked."""

    def __init__(self, filled: Filled, at: Fresh, meter: Meter, patience: float) -> None:
        self.filled = filled
        self.taken: dict[str, _Taken] = defaultdict(_Taken)
        self.note = ""
        self._at = at
        self._meter = meter
        self._patience = patience
        self._spent = 0.0

    async def fill(self) -> None:
        began = time.perf_counter()
        await self.filled.prepare()
        batch: list[Any] = []
        for number, row in enumerate(self.filled.waiting()):
            batch.append(row)
            if len(batch) == _CHUNK:
                await self.filled.backend.insert(batch)
                batch = []
                if time.perf_counter() - began > self._patience:
                    self.note = f"only {number + 1:,} jobs came in within {self._patience:g} s"
                    break
        if batch:
            await self.filled.backend.insert(batch)
        self._at.settle()

    async def play(self, calls: int, *, counts: bool = True) -> None:
        """A round of all calls of the line, some of one kind after the other."""
        walls: dict[str, list[float]] = defaultdict(list)
        for _ in range(max(1, calls // self.filled.line.at_once)):
            if self._spent > self._patience:
                break
            for name in self.filled.line.calls:
                walls[name] += await self._several(name, counts=counts)
        for name, found in walls.items():
            if counts:
                self.taken[name].p50.append(statistics.median(found))
                self.taken[name].p99.append(percentile(found, 0.99))

    async def _several(self, name: str, *, counts: bool) -> list[float]:
        call, taken, meter = self.filled.call(name), self.taken[name], self._meter
        meter.clear()
        walls, slowest = [], 0.0
        for _ in range(self.filled.line.at_once):
            cpu, began = time.process_time(), time.perf_counter()
            await call()
            walls.append((time.perf_counter() - began) * 1e3)
            slowest = max(slowest, (time.process_time() - cpu) * 1e3)
        self._spent += sum(walls) / 1e3
        effort, told = meter.effort(), meter.slowest()
        if counts:
            taken.efforts.append(effort / len(walls))
            taken.slowest = max(taken.slowest, slowest if told is None else told)
            taken.calls += len(walls)
        return walls

    def cells(self) -> Iterator[Cell]:
        for name, taken in self.taken.items():
            yield Cell(
                self.filled.line.name,
                name,
                self.filled.size,
                taken.calls,
                statistics.median(taken.p50),
                statistics.median(taken.p99),
                statistics.mean(taken.efforts),
                self._meter.unit,
                taken.slowest,
                note=self.note,
            )


def study(store: str, servers: Servers, line: Line, plan: Plan, place: Path | None = None) -> list[Cell]:
    """One line, all its sizes."""
    with _stores(store, servers, line, place) as sides:
        cells = asyncio.run(_measure(line, plan, sides))
    return judged(line, cells)


@contextmanager
def _stores(store: str, servers: Servers, line: Line, place: Path | None) -> Iterator[list[tuple[Fresh, Meter]]]:
    with ExitStack() as stack:
        found = []
        for _ in line.sizes:
            at = stack.enter_context(fresh(store, servers, place, "counting"))
            found.append((at, stack.enter_context(metered(at))))
        yield found


async def _measure(line: Line, plan: Plan, stores: Sequence[tuple[Fresh, Meter]]) -> list[Cell]:
    sides = []
    async with AsyncExitStack() as stack:
        for size, (at, meter) in zip(line.sizes, stores, strict=True):
            app = await stack.enter_async_context(App(at.url))
            sides.append(_Side(Filled(line, size, app, await app.client.backend()), at, meter, plan.patience))
            await sides[-1].fill()
            if not line.burst:
                await sides[-1].play(line.at_once, counts=False)
        for _ in range(plan.rounds):
            for side in sides:
                await side.play(plan.calls)
    return [cell for side in sides for cell in side.cells()]


def judged(line: Line, cells: Sequence[Cell]) -> list[Cell]:
    """Each beside the smallest size of the same call."""
    found = []
    smallest = {cell.call: cell for cell in reversed(cells) if cell.size == line.sizes[0]}
    for cell in cells:
        first = smallest[cell.call]
        times, more = cell.p99 / first.p99, cell.effort / first.effort if first.effort else 1.0
        steady = times <= FACTOR or cell.call in line.proportional
        bound = BOUND if first.slowest <= BOUND else FACTOR * first.slowest  # then the machine is slow
        flat = (steady or more <= NOISE) and cell.slowest <= bound and not cell.note
        note = cell.note or ("noise" if flat and not steady else "")
        if flat and times > FACTOR and cell.call in line.proportional:
            note = "as many as there are"
        found.append(replace(cell, times=times, effort_times=more, flat=flat, note=note))
    return found


def table(cells: Sequence[Cell]) -> str:
    """The cells for people."""
    unit = cells[0].unit
    rows: list[Sequence[str]] = [("beside", "", "call", "p50 ms", "p99 ms", "times", unit, "times", "slowest ms", "")]
    for c in cells:
        figures = (shown(c.p50), shown(c.p99), f"{c.times:.1f}", shown(c.effort), f"{c.effort_times:.1f}")
        rows.append((c.line, f"{c.size:,}", c.call, *figures, shown(c.slowest), _verdict(c.flat, c.note)))
    return "\n".join(aligned(rows))


def crowds_table(crowds: Sequence[Crowd]) -> str:
    """The crowds for people."""
    rows: list[Sequence[str]] = [("crowd", "", "one, or plain", "many, or governed", "times", "")]
    for c in crowds:
        rows.append((c.name, c.unit, shown(c.before), shown(c.after), f"{c.ratio:.2f}", _verdict(c.flat, c.note)))
    return "\n".join(aligned(rows))


def _verdict(flat: bool, note: str = "") -> str:
    return note or ("flat" if flat else "NOT FLAT")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.studies.flat", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--store", choices=STORES, action="append", help="may be repeated; default: all")
    parser.add_argument("--line", action="append", help="only lines whose name begins so; may be repeated")
    parser.add_argument("--place", type=Path, help="where the stores are; must be a disk, not memory")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    plan = QUICK if given.quick else Plan()
    wanted = tuple(given.line or ("",))
    flat, noise = True, 0
    for store in given.store or STORES:
        found: list[dict[str, object]] = []
        with Servers(given.place, None) as servers:
            for line in lines(plan.scale):
                if line.name.startswith(wanted):
                    cells = study(store, servers, line, plan, given.place)
                    print(f"{store}: {line.name}\n{table(cells)}\n", flush=True)
                    found += [{"kind": f"flat, {line.name}", **asdict(cell)} for cell in cells]
            crowds: list[Crowd] = []
            if "idle workers".startswith(wanted):
                crowds += flat_crowds.idle(store, servers, plan.trickle, plan.workers, given.place)
            if "claimers".startswith(wanted):
                crowds += flat_crowds.governed(store, servers, plan.jobs, plan.claimers, plan.times, given.place)
            if store == "postgres" and "producers".startswith(wanted):
                crowds += flat_producers.compared(servers, plan.seconds, given.place)
            if crowds:
                print(f"{store}: crowds\n{crowds_table(crowds)}\n", flush=True)
            found += [{"kind": f"crowd, {crowd.name}", **asdict(crowd), "ratio": crowd.ratio} for crowd in crowds]
        flat = flat and all(one["flat"] for one in found)
        noise += sum(one["note"] == "noise" for one in found)
        keep(given.output, store, facts(given.place or Path(tempfile.gettempdir())), found)
    slower = f"; {noise} took more than twice as long by the clock alone" if noise else ""
    print(f"{'all is flat' if flat else 'not all is flat'}{slower}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
