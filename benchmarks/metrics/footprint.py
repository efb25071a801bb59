"""The memory of a worker with many slots, all of them busy with wide jobs, and with what it prefetches at hand."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.systems.system import System

MB = 1_000_000
_MORE = 2_000
"""Wide jobs beyond the slots: more than are ever prefetched."""


class Footprint(Metric):
    name = "footprint"
    needs = frozenset({"fill", "footprint"})
    figures = (
        Figure("memory_peak", "MB"),
        Figure("memory_resident", "MB"),
        Figure("memory_prefetched", "jobs", more_is_better=True),
    )
    most_repeats = 1

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.slots:,} slots busy with jobs of {bench.sizes.wide:,} B, memory_prefetched more at hand"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        python, slots = bench.python(system), bench.sizes.slots
        with bench.stage(system) as stage:
            stage.play(python, system.name, "fill", count=slots + _MORE, size=bench.sizes.wide, task="hold")
            answer = stage.play(python, system.name, "footprint", core=bench.cores.measured, slots=slots)
        return {
            "memory_peak": answer["peak"] / MB,
            "memory_resident": answer["resident"] / MB,
            "memory_prefetched": answer["prefetched"],
        }
