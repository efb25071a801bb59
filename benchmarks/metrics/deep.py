"""A deep queue on a server against a shallow one: the drain from its head, and single claims."""

from __future__ import annotations

import statistics

from benchmarks.metrics.metric import Bench, Figure, Metric, percentile
from benchmarks.payload import SMALL
from benchmarks.sizes import Sizes
from benchmarks.stage import Stage
from benchmarks.systems.headrace_crowd import WARM_CLAIMS
from benchmarks.systems.system import System

_BATCH = 10
"""Jobs of one claim: as many as a worker with default settings has slots."""
_PACE = 1_500
"""Jobs per second that any fill manages."""


class Deep(Metric):
    """One deep store and a shallow one side by side, measured in turns. The worker itself tells when the store has
    acknowledged so many jobs: asking for the depth would cost the server more than the drain."""

    name = "deep"
    needs = frozenset({"fill", "solo", "claims"})
    figures = (
        Figure("depth_deep", "jobs/s", more_is_better=True),
        Figure("depth_shallow", "jobs/s", more_is_better=True),
        Figure("depth_ratio", "×", more_is_better=True),
        Figure("claim_p50_deep", "ms"),
        Figure("claim_p99_deep", "ms"),
        Figure("claim_p50_shallow", "ms"),
        Figure("claim_p99_shallow", "ms"),
        Figure("claim_ratio", "×"),
    )
    most_repeats = 1

    def skip(self, sizes: Sizes) -> bool:
        return not sizes.deep

    def how(self, bench: Bench) -> str:
        sizes = bench.sizes
        return (
            f"{sizes.drain:,} of {sizes.deep:,} against {sizes.drain:,} of {_shallow(sizes):,} jobs of {SMALL} B,"
            f" medians of {sizes.repeats}; {sizes.repeats} × {sizes.claims:,} claims of {_BATCH}, one after the other"
        )

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        deep, shallow, claims_deep, claims_shallow = [], [], list[int](), list[int]()
        with bench.stage(system) as stage:
            self._fill(bench, system, stage, bench.sizes.deep)
            for _ in range(bench.sizes.repeats):
                claims_deep += self._claims(bench, system, stage)
                deep.append(self._drain(bench, system, stage))
                with bench.stage(system) as other:
                    self._fill(bench, system, other, _shallow(bench.sizes))
                    claims_shallow += self._claims(bench, system, other)
                    shallow.append(self._drain(bench, system, other))
        found = {
            "depth_deep": statistics.median(deep),
            "depth_shallow": statistics.median(shallow),
            "depth_ratio": statistics.median(deep) / statistics.median(shallow),
        }
        for name, claims in (("deep", claims_deep), ("shallow", claims_shallow)):
            found[f"claim_p50_{name}"] = statistics.median(claims) / 1e6
            found[f"claim_p99_{name}"] = percentile(claims, 0.99) / 1e6
        return found | {"claim_ratio": found["claim_p99_deep"] / found["claim_p99_shallow"]}

    def _fill(self, bench: Bench, system: System, stage: Stage, count: int) -> None:
        """What is left to be written of it is not left to the drain."""
        stage.play(bench.python(system), system.name, "fill", count=count, limit=bench.sizes.limit + count / _PACE)
        bench.server(system).settle(stage.database)

    def _drain(self, bench: Bench, system: System, stage: Stage) -> float:
        count = bench.sizes.drain
        answer = stage.play(bench.python(system), system.name, "solo", core=bench.cores.measured, count=count)
        return count / float(answer["seconds"])

    def _claims(self, bench: Bench, system: System, stage: Stage) -> list[int]:
        python, count = bench.python(system), bench.sizes.claims
        answer = stage.play(python, system.name, "claims", core=bench.cores.measured, count=count, batch=_BATCH)
        return list(answer["latencies"])


def _shallow(sizes: Sizes) -> int:
    """As many as are drained stay behind, so that neither drain pays for reaching the end."""
    return 2 * sizes.drain + (sizes.claims + WARM_CLAIMS) * _BATCH
