"""Idle pick-up: from the call that enqueues in one process to the handler's first line in another."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric, latencies
from benchmarks.systems.system import System


class Pickup(Metric):
    name = "pickup"
    needs = frozenset({"work", "produce"})
    figures = (Figure("pickup_p50", "ms"), Figure("pickup_p99", "ms"))

    def how(self, bench: Bench) -> str:
        return f"up to {bench.sizes.samples} single jobs to an idle worker in another process, every one counted"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        python, count = bench.python(system), min(bench.sizes.samples, system.most_samples)
        with bench.stage(system) as stage:
            worker = stage.start(python, system.name, "work", core=bench.cores.measured)
            worker.ready()
            worker.go()
            stage.play(python, system.name, "produce", core=bench.beside(system), count=count, gap=system.gap)
            worker.stop()
            found = worker.result()["latencies"]
        if len(found) != count:  # those that are late or lost are the ones that matter
            raise ValueError(f"{len(found)} of {count} jobs were picked up")
        return latencies(found, "pickup")
