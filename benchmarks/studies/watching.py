"""What it costs a drain to be watched: metrics, a tracing API without an SDK, events that somebody hears.

``python -m benchmarks.studies.watching`` drains no-op jobs of a memory store in processes of their own. The events
are heard in the same process, so what is measured is the telling and the hearing. The memory store is the quickest
there is, so every share is as large as it can be.

The verdict goes by instructions, which a busy machine changes little: two drains of each kind, one with more jobs, so
that the difference is the running and nothing else. Processor time and the clock are shown beside it. Each round
pairs a drain of this kind with one that nobody watches, and the median of the rounds' ratios counts, less what two
drains that nobody watches differ by. Where instructions cannot be counted, processor time gives the verdict. (Under
valgrind a drain takes many times longer, so what is done by the clock, as events are told, weighs more than it does.)
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from benchmarks.metrics.instructions import counter
from headrace import Admin, App
from headrace.contrib.otel import instrument
from headrace.core.meter import Meter

FLOORS = {"nothing": 1.0, "metrics": 0.97, "tracing": 0.99, "events": 0.95}
"""The least share of the speed that is left with each kind of watching."""
_BASE = 1_000
_MORE = 20_000
_COUNT = re.compile(r"^([0-9]+),[^,]*,instructions:u|refs:\s+([0-9,]+)", re.M)


@asynccontextmanager
async def watched(app: App, kind: str) -> AsyncIterator[None]:
    """The app, watched in this way."""
    match kind:
        case "metrics":
            app.client.observers.meter = Meter(app.client.clock)
            yield
        case "tracing":
            instrument(app)
            yield
        case "events":
            async with Admin(app.client).listening.listen():
                yield
        case _:
            yield


async def drain(kind: str, count: int, aside: int) -> None:
    """Store ``count`` and ``aside`` jobs, and run the first."""
    app = App("memory://")

    @app.task(name="noop", queue="q", result_ttl=0)
    async def noop(number: int) -> None: ...

    async with app, watched(app, kind):
        await app.enqueue_many([noop.job(number) for number in range(count)])
        await app.enqueue_many([noop.options(queue="aside").job(number) for number in range(aside)])
        began = time.process_time(), time.perf_counter()
        await app.drain(["q"])
        print(time.process_time() - began[0], time.perf_counter() - began[1])


class Spent(NamedTuple):
    """What a drain took, in seconds."""

    cpu: float
    clock: float


class Pair(NamedTuple):
    """The shares of the speed that are left, of one drain beside another that nobody watched."""

    cpu: float
    clock: float


def spent(kind: str, count: int) -> Spent:
    """What a process takes to drain so many jobs."""
    command = [sys.executable, "-m", "benchmarks.studies.watching", "--drain", kind, str(count), "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cpu, clock = map(float, done.stdout.split())
    return Spent(cpu, clock)


def pair(kind: str, count: int, number: int) -> Pair:
    """One of each, in turns the one and the other first."""
    order = ("nothing", kind) if number % 2 else (kind, "nothing")
    first, second = (spent(one, count) for one in order)
    plain, watched_ = (first, second) if number % 2 else (second, first)
    return Pair(plain.cpu / watched_.cpu, plain.clock / watched_.clock)


def noise(ratios: Sequence[float]) -> float:
    """How far two drains that nobody watches are apart, as a rule."""
    return statistics.median(abs(one - 1.0) for one in ratios)


def instructions(kind: str, count: int, aside: int) -> int:
    """How many instructions a process needs for that."""
    command = [*(counter() or ()), sys.executable, "-m", "benchmarks.studies.watching", "--drain", kind]
    done = subprocess.run([*command, str(count), str(aside)], capture_output=True, text=True, check=True)
    found = _COUNT.search(done.stderr)
    if found is None:
        raise SystemExit(f"no count in: {done.stderr}")
    return int((found[1] or found[2]).replace(",", ""))


def per_job(kind: str, more: int) -> float:
    """Instructions for each job."""
    return (instructions(kind, _BASE + more, 0) - instructions(kind, _BASE, more)) / more


def main() -> int:
    """Measure, print, and say whether all floors hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drain", nargs=3, metavar=("KIND", "COUNT", "ASIDE"))
    parser.add_argument("--rounds", type=int, default=3, help="of counted drains")
    parser.add_argument("--pairs", type=int, default=7, help="of drains by processor time and the clock")
    parser.add_argument("--jobs", type=int, default=_MORE)
    given = parser.parse_args()
    if given.drain:
        kind, count, aside = given.drain
        asyncio.run(drain(kind, int(count), int(aside)))
        return 0
    pairs = {kind: [pair(kind, given.jobs, number) for number in range(given.pairs)] for kind in FLOORS}
    counted = None if counter() is None else [shares(given.jobs) for _ in range(given.rounds)]
    return 1 if judged(pairs, counted) else 0


def shares(jobs: int) -> dict[str, float]:
    """One round of counts, beside one that nobody watches; ``nothing`` is such a drain too, and shows the noise."""
    plain = per_job("nothing", jobs)
    print(f"{plain:,.0f} instructions per job if nobody watches")
    return {kind: plain / per_job(kind, jobs) for kind in FLOORS}


def judged(pairs: dict[str, list[Pair]], counted: Sequence[dict[str, float]] | None) -> list[str]:
    """Print a line for each kind; returns the kinds whose floor does not hold, noise allowed for."""
    doubt = noise([one.cpu for one in pairs["nothing"]] if counted is None else [one["nothing"] for one in counted])
    failed = []
    for kind, floor in FLOORS.items():
        cpu, clock = (statistics.median(values) for values in zip(*pairs[kind], strict=True))
        share = cpu if counted is None else statistics.median(one[kind] for one in counted)
        if kind != "nothing" and share < floor - doubt:
            failed.append(kind)
        told = "   –  " if counted is None else f"{share:6.1%}"
        kept = "FAILS" if kind in failed else "holds"
        print(f"{kind:<8} instructions {told}  cpu {cpu:6.1%}  clock {clock:6.1%}  at least {floor:.0%}: {kept}")
    by = "instructions" if counted is not None else "cpu, as neither perf nor valgrind can be used here"
    print(f"judged by {by}, less {doubt:.1%} of noise")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
