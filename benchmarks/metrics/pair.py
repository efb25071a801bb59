"""Two worker processes against one."""

from __future__ import annotations

import time

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.systems.system import System


class Pair(Metric):
    """A server that keeps its core busy gains nothing by a second worker, nor do two workers that share a core."""

    name = "pair"
    needs = frozenset({"fill", "work", "watch"})
    figures = (
        Figure("pair_one", "jobs/s", more_is_better=True),
        Figure("pair_two", "jobs/s", more_is_better=True),
        Figure("pair_ratio", "×", more_is_better=True),
    )

    def applies(self, system: System) -> bool:
        return super().applies(system) and system.served and system.name.startswith("headrace")

    def how(self, bench: Bench) -> str:
        where = ", ".join("any" if core is None else str(core) for core in bench.cores.others(2))
        return f"{2 * bench.sizes.drain:,} no-op jobs of {SMALL} B; workers on cores {where}, the server on its own"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        one, two = self.drain(bench, system, 1), self.drain(bench, system, 2)
        return {"pair_one": one, "pair_two": two, "pair_ratio": two / one}

    def drain(self, bench: Bench, system: System, number: int) -> float:
        """Jobs per second by so many workers."""
        python, count = bench.python(system), 2 * bench.sizes.drain
        with bench.stage(system) as stage:
            stage.play(python, system.name, "fill", count=count)
            watch = stage.start(python, system.name, "watch", core=bench.cores.other, goal=0)
            # One after the other: they warm up on the same store.
            workers = []
            for core in bench.cores.others(number):
                workers.append(stage.start(python, system.name, "work", core=core))
                workers[-1].ready()
            watch.ready()
            watch.go()
            start = time.monotonic_ns()
            for worker in workers:
                worker.go()
            end = int(watch.result()["at"])
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.result()
        return count / ((end - start) / 1e9)
