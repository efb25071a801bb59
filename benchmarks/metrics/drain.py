"""Drain: one worker process, until the store holds no job that waits or is not acknowledged."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.stage import Stage
from benchmarks.systems.system import System


class Drain(Metric):
    """The worker is up and connected when the clock starts; another process looks at the store to stop it."""

    name = "drain"
    needs = frozenset({"fill", "work", "watch"})
    figures = (
        Figure("drain", "jobs/s", more_is_better=True),
        Figure("drain_cpu", "µs/job"),
        Figure("drain_written", "B/job"),
        Figure("drain_writes", "calls/job"),
    )

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.drain:,} no-op jobs of {SMALL} B"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        count = bench.sizes.drain
        with bench.stage() as stage:
            stage.play(bench.python(system), system.name, "fill", count=count)
            seconds, used = drain(bench, stage, system, 0)
        found = {"drain": count / seconds, "drain_cpu": used["cpu"] / count * 1e6}
        if "written" in used:
            found |= {"drain_written": used["written"] / count, "drain_writes": used["writes"] / count}
        return found


def drain(bench: Bench, stage: Stage, system: System, goal: int) -> tuple[float, dict[str, Any]]:
    """Seconds until the store holds ``goal`` unfinished jobs, and what the worker used for it."""
    python = bench.python(system)
    watch = stage.start(python, system.name, "watch", core=bench.cores.other, goal=goal)
    worker = stage.start(python, system.name, "work", core=bench.cores.measured)
    watch.ready()
    worker.ready()
    watch.go()
    start = time.monotonic_ns()
    worker.go()
    end = watch.result()["at"]
    worker.stop()
    return (end - start) / 1e9, worker.result()
