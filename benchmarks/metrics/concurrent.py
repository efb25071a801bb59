"""Enqueue from many callers at once: they share trips."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.systems.system import System


class Concurrent(Metric):
    name = "concurrent"
    needs = frozenset({"concurrent"})
    figures = (Figure("concurrent", "jobs/s", more_is_better=True), Figure("concurrent_cpu", "µs/job"))

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.concurrent:,} jobs of {SMALL} B, {bench.sizes.callers} callers"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        count = bench.sizes.concurrent
        with bench.stage(system) as stage:
            answer = stage.play(
                bench.python(system),
                system.name,
                "concurrent",
                core=bench.cores.measured,
                count=count,
                callers=bench.sizes.callers,
            )
        return {"concurrent": count / answer["seconds"], "concurrent_cpu": answer["cpu"] / count * 1e6}
