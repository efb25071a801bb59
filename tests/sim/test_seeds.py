"""The system as it is, over many seeds: nothing may be found."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.testing.sim.casts import CASTS, RULES, TICKS
from headrace.testing.sim.points import FAULTS, RULING, SOMETIMES, TICKING
from headrace.testing.sim.scenarios import simulate

CHUNK = 10
SEEDS = 200


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
@pytest.mark.parametrize("cast", ["core", "scripted"])
def test_every_invariant_holds(cast: str, first: int) -> None:
    # Real worker and client play two seeds in three: they are what is shipped.
    for seed in range(first, first + CHUNK):
        if (seed % 3 == 0) == (cast == "scripted"):
            _, verdict = simulate(seed, cast=CASTS[cast])
            assert verdict.ok, verdict.story
            assert not verdict.lost
            assert not verdict.unexpected


@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_every_invariant_holds_of_schedules(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _, verdict = simulate(seed, cast=TICKS)
        assert verdict.ok, verdict.story
        assert not verdict.lost
        assert not verdict.unexpected


@pytest.mark.parametrize("first", range(0, 50, CHUNK))
def test_every_invariant_holds_of_rules(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _, verdict = simulate(seed, cast=RULES)
        assert verdict.ok, verdict.story
        assert not verdict.lost
        assert not verdict.unexpected


def test_every_situation_of_rules_comes_up() -> None:
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        reached.update(simulate(seed, cast=RULES)[1].points)
        if not (missing := [point for point in RULING if not reached[point]]):
            return
    raise AssertionError(f"no seed has come across: {', '.join(missing)}")


def test_every_situation_of_schedules_comes_up() -> None:
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        reached.update(simulate(seed, cast=TICKS)[1].points)
        if not (missing := [point for point in TICKING if not reached[point]]):
            return
    raise AssertionError(f"no seed has come across: {', '.join(missing)}")


def test_every_fault_and_every_situation_comes_up() -> None:
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        reached.update(simulate(seed)[1].points)
        if missing := [point for point in (*FAULTS, *SOMETIMES) if not reached[point]]:
            continue
        return
    raise AssertionError(f"no seed has come across: {', '.join(missing)}")
