"""What it costs a drain to be watched: metrics, a tracing API without an SDK, events that somebody hears.

``python -m benchmarks.studies.watching`` drains no-op jobs of a memory store in processes of their own, and counts
their instructions, which a busy machine hardly changes. The events are heard in the same process, so what is counted is
the telling and the hearing. Two drains of each kind, one with more jobs: the difference is
the running, and nothing else. The memory store is the quickest there is, so every share is as large as it can be.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
        await app.drain(["q"])


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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=_MORE)
    given = parser.parse_args()
    if given.drain:
        kind, count, aside = given.drain
        asyncio.run(drain(kind, int(count), int(aside)))
        return 0
    if counter() is None:
        raise SystemExit("neither perf nor valgrind can be used here: install one of them")
    rounds = [{kind: per_job(kind, given.jobs) for kind in FLOORS} for _ in range(given.rounds)]
    middle = {kind: statistics.median(one[kind] for one in rounds) for kind in FLOORS}
    failed = False
    for kind, floor in FLOORS.items():
        share = middle["nothing"] / middle[kind]
        failed = failed or share < floor
        print(f"{kind:<10} {middle[kind]:>12,.0f} instructions per job  {share:6.1%}  (at least {floor:.0%})")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
