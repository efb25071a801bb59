"""The same drain from the top of a deep queue: what lies behind must cost nothing."""

from __future__ import annotations

import statistics

from benchmarks.metrics.drain import drain
from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.sizes import Sizes
from benchmarks.systems.system import System

_TIMES = 3


class Depth(Metric):
    """One deep store, drained a little several times, each time next to the same drain of a shallow one."""

    name = "depth"
    needs = frozenset({"fill", "work", "watch"})
    figures = (
        Figure("depth_deep", "jobs/s", more_is_better=True),
        Figure("depth_shallow", "jobs/s", more_is_better=True),
        Figure("depth_ratio", "×", more_is_better=True),
    )
    most_repeats = 1

    def applies(self, system: System) -> bool:
        return super().applies(system) and system.name.startswith("headrace") and not system.served

    def skip(self, sizes: Sizes) -> bool:
        return not sizes.deep

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.drain:,} of {bench.sizes.deep:,} jobs of {SMALL} B, medians of {_TIMES}"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        python, count, left = bench.python(system), bench.sizes.drain, bench.sizes.deep
        deep, shallow = [], []
        with bench.stage(system) as stage:
            stage.play(python, system.name, "fill", count=left, limit=bench.sizes.limit * 3)
            for _ in range(_TIMES):
                # A worker that is stopped has drained somewhat more than was waited for.
                left = stage.play(python, system.name, "count")["left"] - count
                deep.append(count / drain(bench, stage, system, left)[0])
                shallow.append(self._shallow(bench, system))
        return {
            "depth_deep": statistics.median(deep),
            "depth_shallow": statistics.median(shallow),
            "depth_ratio": statistics.median(deep) / statistics.median(shallow),
        }

    def _shallow(self, bench: Bench, system: System) -> float:
        count = bench.sizes.drain
        with bench.stage(system) as stage:
            # As many again stay behind, so that neither drain pays for reaching the end.
            stage.play(bench.python(system), system.name, "fill", count=2 * count)
            return count / drain(bench, stage, system, count)[0]
