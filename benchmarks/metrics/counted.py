"""What a drained job costs in things that can be counted: trips, statements, commits, bytes, blocks kept."""

from __future__ import annotations

from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.payload import SMALL
from benchmarks.systems.system import System


class Counted(Metric):
    """A drain of its own, as counting statements slows it down."""

    name = "counted"
    needs = frozenset({"solo"})
    figures = (
        Figure("trips", "trips/job"),
        Figure("jobs_per_claim", "jobs", more_is_better=True),
        Figure("statements", "per job"),
        Figure("write_statements", "per job"),
        Figure("commits", "per job"),
        Figure("blocks_kept", "blocks/job"),
    )
    most_repeats = 1

    def how(self, bench: Bench) -> str:
        return f"{bench.sizes.counted:,} no-op jobs of {SMALL} B, all calls to the store counted"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        python, count = bench.python(system), bench.sizes.counted
        with bench.stage(system) as stage:
            if system.shared:
                stage.play(python, system.name, "fill", count=count)
            answer = stage.play(
                python,
                system.name,
                "solo",
                core=bench.cores.measured,
                count=count,
                filled=system.shared,
                traced=system.backend == "sqlite",
            )
        trips = sum(answer["trips"].values())
        brought = answer["claims"]  # the empty ones too: they are trips like the others
        found = {"trips": trips / count, "jobs_per_claim": sum(brought) / len(brought)}
        if system.shared:
            found["blocks_kept"] = answer["blocks"] / count
        for name in ("statements", "write_statements", "commits"):
            if name in answer:
                found[name] = answer[name] / count
        return found
