"""Every planted bug is caught within a few seeds, and by the invariant that it breaks."""

from __future__ import annotations

import pytest

from headrace.testing.sim.invariants import INVARIANTS
from headrace.testing.sim.scenarios import simulate
from tests.sim import broken_stores as stores
from tests.sim import mutants
from tests.sim.mutants import Mutant

MUTANTS = [
    *mutants.MUTANTS,
    Mutant("RenewNamesAnotherLease", "I4", store=stores.RenewNamesAnotherLease),
    Mutant("ClaimGivesSuspectsToAnybody", "I8", store=stores.ClaimGivesSuspectsToAnybody),
    Mutant("EverybodyMakesRoom", "I28", store=stores.EverybodyMakesRoom),
    Mutant("ClaimHidesSuspects", "I22", store=stores.ClaimHidesSuspects),
]
SEEDS = range(40)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.name} → {mutant.invariant}")
def test_a_planted_bug_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant.patch is not None:
        monkeypatch.setattr(*mutant.patch)
    assert any(_caught(mutant, seed) for seed in SEEDS), f"{mutant.invariant} was never found broken"


def test_there_are_enough_of_them_and_each_invariant_has_its_own() -> None:
    assert len(MUTANTS) >= 50
    assert {mutant.invariant for mutant in MUTANTS} == set(INVARIANTS)


def _caught(mutant: Mutant, seed: int) -> bool:
    try:
        _, verdict = simulate(seed, store=mutant.store, cast=mutant.cast)
    except Exception:
        # Some bugs also bring a worker down, but it is the checker that has to tell.
        return False
    return mutant.invariant in verdict.broken
