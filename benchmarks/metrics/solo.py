"""Drain where the store is the process's own memory: what Python itself costs per job."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.systems.system import System


class Solo(Metric):
    name = "solo"
    needs = frozenset({"solo"})
    figures = (Figure("drain", "jobs/s", more_is_better=True), Figure("drain_cpu", "µs/job"))

    def applies(self, system: System) -> bool:
        return super().applies(system) and not system.shared

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.solo:,} no-op async jobs of {SMALL} B, store and worker in one process"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        count = bench.sizes.solo
        with bench.stage(system) as stage:
            answer = stage.play(
                bench.python(system), system.name, "solo", core=bench.cores.measured, count=count, filled=False
            )
        return {"drain": count / answer["seconds"], "drain_cpu": answer["cpu"] / count * 1e6}
