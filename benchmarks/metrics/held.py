"""A snapshot held open under load: what a forgotten transaction costs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.sizes import Sizes
from benchmarks.systems.system import System

_END = 1 / 6
"""The last share of the time under the snapshot: 30 s of three minutes."""

Samples = Sequence[tuple[int, int]]
"""Instants in nanoseconds, and how many jobs had completed by then."""


class Held(Metric):
    """One process keeps a backlog and works it off as fast as it can. After a while another opens a transaction, looks
    once, and stays."""

    name = "held"
    needs = frozenset({"steady"})
    figures = (
        Figure("held_before", "jobs/s", more_is_better=True),
        Figure("held_after", "jobs/s", more_is_better=True),
        Figure("held_ratio", "×", more_is_better=True),
    )
    """``after``: at the end of the time under the snapshot."""
    most_repeats = 1

    def skip(self, sizes: Sizes) -> bool:
        return not sizes.held

    def how(self, bench: Bench) -> str:
        sizes = bench.sizes
        return (
            f"no-op jobs of {SMALL} B, a backlog of {sizes.backlog:,}; {sizes.baseline:g} s before, then a snapshot is"
            f" held for {sizes.held:g} s, of which the last {sizes.held * _END:g} s count"
        )

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        sizes = bench.sizes
        with bench.stage(system) as stage:
            actor = stage.start(
                bench.python(system),
                system.name,
                "steady",
                core=bench.cores.measured,
                limit=sizes.limit + sizes.baseline + sizes.held,
                backlog=sizes.backlog,
            )
            actor.ready()
            actor.go()
            time.sleep(sizes.baseline)
            with bench.postgres().connect(stage.database) as connection, connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                connection.execute("SELECT count(*) FROM pg_class")
                began = time.monotonic_ns()
                time.sleep(sizes.held)
                ended = time.monotonic_ns()
            actor.stop()
            samples: Samples = actor.result()["samples"]
        before = _rate(samples, began - int(sizes.baseline * 0.7e9), began)
        after = _rate(samples, ended - int(sizes.held * _END * 1e9), ended)
        return {"held_before": before, "held_after": after, "held_ratio": after / before}


def _rate(samples: Samples, start: int, end: int) -> float:
    """Between the last samples at or before each instant."""
    (first, from_), (last, to) = (
        max(((at, number) for at, number in samples if at <= instant), default=samples[0]) for instant in (start, end)
    )
    if first == last or from_ == to:
        raise ValueError(f"nothing happened in {(end - start) / 1e9:.1f} s that tells a rate")
    return (to - from_) / ((last - first) / 1e9)
