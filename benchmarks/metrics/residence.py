"""The server's memory: what a job takes up while it waits and after it has ended, and that nothing is left of it."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.stage import Stage
from benchmarks.systems.system import System

_FEW = 1_000
"""Jobs after which a store has all that it has when it is empty."""
_PACE = 1_500
"""Jobs per second that any fill or drain manages."""


class Residence(Metric):
    """Taken when no client is connected but the harness, so that nobody's buffers count. What a store has when it is
    empty, and has been used, is the base."""

    name = "residence"
    needs = frozenset({"fill", "emptied"})
    figures = (
        Figure("resident_queued", "B/job"),
        Figure("resident_finished", "B/job"),
        Figure("resident_base", "KB"),
        Figure("resident_after", "KB"),
        Figure("resident_ratio", "×"),
    )
    """``after``: when as many jobs as the deep drain has are drained, none is kept, and what there is was swept."""
    most_repeats = 1

    def how(self, bench: Bench) -> str:
        sizes = bench.sizes
        return (
            f"used_memory, slow log and statistics reset; {sizes.resident:,} jobs of {SMALL} B waiting, then all"
            f" completed and kept; after {sizes.deep or sizes.resident:,} jobs were stored and drained with nothing"
            " kept, against before"
        )

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        count, many = bench.sizes.resident, bench.sizes.deep or bench.sizes.resident
        with bench.stage(system, "quiet") as stage:
            base = self._emptied(bench, system, stage, _FEW)
            after = self._emptied(bench, system, stage, many)
            python = bench.python(system)
            stage.play(python, system.name, "fill", count=count)
            queued = bench.valkey("quiet").memory(stage.database)
            stage.play(python, system.name, "emptied", count=count, history=True, filled=True)
            finished = bench.valkey("quiet").memory(stage.database)
        return {
            "resident_queued": (queued - after) / count,
            "resident_finished": (finished - after) / count,
            "resident_base": base / 1e3,
            "resident_after": after / 1e3,
            "resident_ratio": after / base,
        }

    def _emptied(self, bench: Bench, system: System, stage: Stage, count: int) -> int:
        """The memory after so many jobs were stored and drained, of which nothing is kept."""
        stage.play(
            bench.python(system),
            system.name,
            "emptied",
            limit=bench.sizes.limit + count / _PACE,
            count=count,
            history=False,
            filled=False,
        )
        return bench.valkey("quiet").memory(stage.database)
