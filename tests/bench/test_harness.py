"""The harness goes round all systems, keeps what it finds, and reports what fails."""

from benchmarks.harness import Harness
from benchmarks.machine import Cores
from benchmarks.metrics.metric import Bench, Figure, Metric, latencies, percentile
from benchmarks.results import Run
from benchmarks.sizes import Sizes
from benchmarks.stage import ActorFailed
from benchmarks.systems.system import System


class Toy(System):
    roles = frozenset({"toy"})


class Fake(Metric):
    name = "fake"
    needs = frozenset({"toy"})
    figures = (Figure("speed", "jobs/s", more_is_better=True),)

    def __init__(self) -> None:
        self.calls: list[str] = []

    def how(self, bench: Bench) -> str:
        return "one toy"

    def run(self, bench: Bench, system: System) -> dict[str, float]:
        self.calls.append(system.name)
        if system.name == "broken":
            raise ActorFailed("broken toy: fell apart")
        return {"speed": float(len(self.calls))}


def harness(repeats: int = 3) -> Harness:
    return Harness(Bench(Sizes(repeats=repeats), Cores(None, None)), Run({}), lambda text: None)


def toys(*names: str) -> list[System]:
    return [Toy(name, "none", "as it is") for name in names]


def test_all_systems_come_once_before_any_comes_again() -> None:
    metric, subject = Fake(), harness()
    subject.measure(metric, toys("a", "b"))
    assert metric.calls == ["a", "b"] * 3
    found = subject.run.find("a", "speed")
    assert found is not None
    assert (list(found.values), found.median, len(found.foreign)) == ([1.0, 3.0, 5.0], 3.0, 3)


def test_a_system_that_fails_is_reported_and_holds_nobody_up() -> None:
    metric, subject = Fake(), harness()
    subject.measure(metric, toys("broken", "b"))
    assert metric.calls == ["broken", "b", "b", "b"]
    assert [(f.system, f.metric, f.reason) for f in subject.run.failures] == [
        ("broken", "fake", "broken toy: fell apart")
    ]
    assert subject.run.find("broken", "speed") is None


def test_a_system_that_cannot_play_the_roles_is_left_out() -> None:
    metric, subject = Fake(), harness()
    subject.measure(metric, [System("plain", "none", "")])
    assert metric.calls == []


def test_a_count_is_taken_once() -> None:
    metric, subject = Fake(), harness()
    metric.most_repeats = 1  # type: ignore[misc]
    subject.measure(metric, toys("a"))
    assert metric.calls == ["a"]


def test_percentiles_leave_the_warm_up_out() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(100), 0.99) == 99
    found = latencies([10**9, *[10**6] * 9], "pickup")
    assert found == {"pickup_p50": 1.0, "pickup_p99": 1.0}
