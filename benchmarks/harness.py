"""The measuring itself: every metric over all systems in turn, again and again, so that drift falls on all alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.machine import Load, syncs_per_second
from benchmarks.metrics.metric import Bench, Figure, Metric
from benchmarks.results import Failure, Result, Run
from benchmarks.server import ServerFailed
from benchmarks.stage import ActorFailed
from benchmarks.systems.system import System
from benchmarks.venvs import NotInstalled

Say = Callable[[str], None]


@dataclass
class Tally:
    """The values of one system under one metric as they come in."""

    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    foreign: list[float] = field(default_factory=list)
    syncs: list[float] = field(default_factory=list)


class Harness:
    """Measures what it is given and keeps what it finds in ``run``. A system that fails is reported, and left out of
    the rest of that metric."""

    def __init__(self, bench: Bench, run: Run, say: Say) -> None:
        self._bench = bench
        self._say = say
        self.run = run

    def installed(self, systems: Sequence[System]) -> list[System]:
        """The systems that can be measured here; their versions go into the run, and the reasons of the others."""
        ready = []
        for system in systems:
            try:
                with self._bench.stage(system) as stage:
                    self.run.versions[system.name] = stage.play(self._bench.python(system), system.name, "versions")
            except (ActorFailed, NotInstalled, ServerFailed) as error:
                self._fail(system, "install", error)
            else:
                ready.append(system)
        return ready

    def measure(self, metric: Metric, systems: Sequence[System]) -> None:
        """All systems once, then all again."""
        going = [system for system in systems if metric.applies(system)]
        tallies = {system.name: Tally() for system in going}
        for number in range(min(self._bench.sizes.repeats, metric.most_repeats)):
            for system in list(going):
                self._say(f"{metric.name} {number + 1}: {system.name}")
                if not self._once(metric, system, tallies[system.name]):
                    going.remove(system)
        for system in systems:
            if system.name in tallies:
                self._keep(metric, system, tallies[system.name])

    def _once(self, metric: Metric, system: System, tally: Tally) -> bool:
        before = self._load()
        try:
            found = metric.run(self._bench, system)
        except (ActorFailed, NotInstalled, ServerFailed, ValueError) as error:
            self._fail(system, metric.name, error)
            return False
        tally.foreign.append(round(self._load().foreign_since(before), 2))
        tally.syncs.append(round(syncs_per_second(self._bench.place, 0.05)))
        for name, value in found.items():
            tally.values[name].append(value)
        return True

    def _load(self) -> Load:
        servers = self._bench.servers
        return Load.now(0.0 if servers is None else servers.cpu())

    def _keep(self, metric: Metric, system: System, tally: Tally) -> None:
        for figure in metric.figures:
            if figure.name in tally.values:
                self.run.results.append(self._result(metric, system, figure, tally))

    def _result(self, metric: Metric, system: System, figure: Figure, tally: Tally) -> Result:
        return Result(
            backend=system.backend,
            system=system.name,
            metric=figure.name,
            unit=figure.unit,
            setting=system.setting,
            how=metric.how(self._bench),
            values=tally.values[figure.name],
            more_is_better=figure.more_is_better,
            foreign=tally.foreign,
            syncs=tally.syncs,
        )

    def _fail(self, system: System, metric: str, error: Exception) -> None:
        self.run.failures.append(Failure(system.name, metric, str(error)))
        self._say(f"FAILED {metric} of {system.name}: {error}")
