"""Request and response: a caller waits for the result of a job that a worker in another process runs."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric, latencies
from benchmarks.systems.system import System


class Reply(Metric):
    name = "reply"
    needs = frozenset({"work", "call"})
    figures = (Figure("reply_p50", "ms"), Figure("reply_p99", "ms"))

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.samples} calls one after the other, worker in another process"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        python = bench.python(system)
        with bench.stage(system) as stage:
            worker = stage.start(python, system.name, "work", core=bench.cores.measured)
            worker.ready()
            worker.go()
            answer = stage.play(python, system.name, "call", core=bench.beside(system), count=bench.sizes.samples)
            worker.stop()
            worker.result()
        return latencies(answer["latencies"], "reply")
