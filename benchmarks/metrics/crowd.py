"""Latency of single operations among a hundred workers, each on a connection of its own."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric, latencies
from benchmarks.payload import SMALL
from benchmarks.systems.system import System

_STEPS = ("enqueue", "claim", "poll", "update")


class Crowd(Metric):
    """Once a second, each worker enqueues a job, claims one, updates it (settles it), and polls an empty queue (looks
    for another and finds none)."""

    name = "crowd"
    needs = frozenset({"crowd"})
    figures = tuple(Figure(f"crowd_{step}_{share}", "ms") for step in _STEPS for share in ("p50", "p99"))

    def how(self, bench: Bench) -> str:
        sizes = bench.sizes
        return (
            f"{sizes.crowd} workers with a connection each in one process, one round of the four steps per second and"
            f" worker ({4 * sizes.crowd} statements/s), jobs of {SMALL} B, {sizes.rounds} rounds"
        )

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        with bench.stage(system) as stage:
            answer = stage.play(
                bench.python(system),
                system.name,
                "crowd",
                core=bench.cores.measured,
                workers=bench.sizes.crowd,
                rounds=bench.sizes.rounds,
            )
        found: dict[str, float] = {}
        for step in _STEPS:
            found |= latencies(answer[step], f"crowd_{step}")
        return found
