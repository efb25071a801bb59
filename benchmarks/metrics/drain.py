"""Drain: one worker process, until the store holds no job that waits or is not acknowledged."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.server import Kind
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
        Figure("drain_server_cpu", "µs/job"),
    )
    """Written is what the worker's own process writes; a server's CPU is that of all its processes."""

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.drain:,} no-op jobs of {SMALL} B"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        count = min(bench.sizes.drain, system.most_drained)
        with bench.stage(system) as stage:
            stage.play(bench.python(system), system.name, "fill", count=count)
            seconds, used = drain(bench, stage, system, 0)
        found = {"drain": count / seconds, "drain_cpu": used["cpu"] / count * 1e6}
        if system.served:
            found["drain_server_cpu"] = used["server"] / count * 1e6
        elif "written" in used:
            found |= {"drain_written": used["written"] / count, "drain_writes": used["writes"] / count}
        return found


def drain(bench: Bench, stage: Stage, system: System, goal: int, kind: Kind = "plain") -> tuple[float, dict[str, Any]]:
    """Seconds until the store holds ``goal`` unfinished jobs, and what the worker and a server used for it."""
    python = bench.python(system)
    watch = stage.start(python, system.name, "watch", core=bench.cores.other, goal=goal)
    worker = stage.start(python, system.name, "work", core=bench.cores.measured)
    watch.ready()
    worker.ready()
    server = bench.server(system, kind) if system.served else None
    before = 0.0 if server is None else server.cpu()
    watch.go()
    start = time.monotonic_ns()
    worker.go()
    end = watch.result()["at"]
    used = {} if server is None else {"server": server.cpu() - before}
    worker.stop()
    return (end - start) / 1e9, used | worker.result()
