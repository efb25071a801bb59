"""A taste of the simulation: a few seeds of every cast. ``tests/sim`` has many more, and the planted bugs."""

from __future__ import annotations

import pytest

from headrace.testing.sim.casts import CASTS
from headrace.testing.sim.scenarios import simulate

SEEDS = range(1_000, 1_005)
"""``tests/sim`` has those below."""


@pytest.mark.parametrize("cast", CASTS)
def test_every_invariant_holds(cast: str) -> None:
    for seed in SEEDS:
        _, verdict = simulate(seed, cast=CASTS[cast])
        assert verdict.ok, verdict.story
        assert not verdict.lost
        assert not verdict.unexpected
