"""Bulk enqueue: many jobs in one call."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.systems.system import System


class Bulk(Metric):
    name = "bulk"
    needs = frozenset({"bulk"})
    figures = (
        Figure("bulk", "jobs/s", more_is_better=True),
        Figure("bulk_whole", "jobs/s", more_is_better=True),
    )
    """``bulk_whole`` is what a user pays: it counts the making of the jobs (checking and encoding their arguments)
    too. ``bulk`` is the storing alone."""

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.bulk:,} jobs of {SMALL} B in one call"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        count = bench.sizes.bulk
        with bench.stage(system) as stage:
            answer = stage.play(bench.python(system), system.name, "bulk", core=bench.cores.measured, count=count)
        found = {"bulk": count / answer["seconds"]}
        return found | ({"bulk_whole": count / answer["whole"]} if "whole" in answer else {})
