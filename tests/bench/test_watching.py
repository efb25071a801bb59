"""The studies of what it costs to be watched: their verdicts, and a small run of each."""

from __future__ import annotations

import pytest
from benchmarks.studies import dashboard, watching
from benchmarks.studies.dashboard import Asked, verdict
from benchmarks.studies.watching import FLOORS, Pair, judged


def pairs(cpu: float, spread: float = 0.0) -> list[Pair]:
    return [Pair(cpu + shift, 0.5) for shift in (-spread, 0.0, spread)]


def test_instructions_decide_whatever_the_clock_says() -> None:
    measured = {kind: pairs(0.5) for kind in FLOORS}
    assert judged(measured, [dict.fromkeys(FLOORS, 1.0)]) == []
    assert judged(measured, [dict.fromkeys(FLOORS, 0.96) | {"nothing": 1.0}]) == ["metrics", "tracing"]


def test_what_two_equal_drains_differ_by_decides_nothing() -> None:
    measured = {kind: pairs(1.0) for kind in FLOORS}
    assert judged(measured, [dict.fromkeys(FLOORS, 0.96) | {"nothing": 0.98}]) == ["tracing"]
    assert judged(measured, [dict.fromkeys(FLOORS, 0.96) | {"nothing": 1.04}]) == []


def test_without_a_counter_processor_time_decides_less_its_noise(capsys: pytest.CaptureFixture[str]) -> None:
    measured = {kind: pairs(0.96) for kind in FLOORS} | {"nothing": pairs(1.0, 0.02)}
    assert judged(measured, None) == ["tracing"]
    assert "less 2.0% of noise" in capsys.readouterr().out
    assert judged(measured | {"nothing": pairs(1.0)}, None) == ["metrics", "tracing"]


def test_a_drain_tells_what_it_took() -> None:
    found = watching.pair("metrics", 200, 0)
    assert 0 < found.cpu < 100


@pytest.mark.parametrize(
    ("p95s", "cpu", "told"),
    [([0.05, 0.9, 0.06], 0.2, "kept"), ([0.2, 0.2, 0.05], 0.01, "busy"), ([0.2, 0.2, 0.05], 0.09, "slow")],
)
def test_a_page_is_judged_by_its_middle_round(p95s: list[float], cpu: float, told: str) -> None:
    assert verdict([Asked(0.01, p95, cpu) for p95 in p95s]) == told


async def test_every_page_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    missed = await dashboard.study(500, 2, 2)
    assert "slow" not in missed.values()
    assert len(capsys.readouterr().out.splitlines()) == len(dashboard.PAGES) + 1
