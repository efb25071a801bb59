"""Drain with a short backlog: the best case of libraries that slow down with every job that waits."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.systems.system import System

_PORTION = 100


class Shallow(Metric):
    """Flatters the peer, as it should: targets are held against the better of the two drains."""

    name = "shallow"
    needs = frozenset({"shallow"})
    figures = (Figure("drain_shallow", "jobs/s", more_is_better=True),)

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.drain // 2:,} no-op jobs of {SMALL} B, {_PORTION} waiting at most, enqueue not counted"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        python, count = bench.python(system), bench.sizes.drain // 2
        with bench.stage(system) as stage:
            answer = stage.play(
                python, system.name, "shallow", core=bench.cores.measured, count=count, portion=_PORTION
            )  # fmt: skip
        return {"drain_shallow": answer["done"] / answer["seconds"]}
