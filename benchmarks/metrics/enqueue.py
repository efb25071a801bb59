"""Enqueue one by one: each job is stored before the next is sent."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.systems.system import System


class Enqueue(Metric):
    name = "enqueue"
    needs = frozenset({"enqueue"})
    figures = (
        Figure("enqueue", "jobs/s", more_is_better=True),
        Figure("enqueue_cpu", "µs/job"),
        Figure("enqueue_written", "B/job"),
    )

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.enqueue:,} jobs of {SMALL} B, one caller"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        count = bench.sizes.enqueue
        with bench.stage(system) as stage:
            answer = stage.play(bench.python(system), system.name, "enqueue", core=bench.cores.measured, count=count)
        found = {"enqueue": count / answer["seconds"], "enqueue_cpu": answer["cpu"] / count * 1e6}
        if "written" in answer and not system.served:
            found["enqueue_written"] = answer["written"] / count
        return found
