"""One seed, one run: twice in a process, and in processes whose hashes differ."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.testing.sim.casts import CASTS
from headrace.testing.sim.scenarios import draw_scenario, simulate


@pytest.mark.parametrize("cast", sorted(CASTS))
@pytest.mark.parametrize("seed", [1, 4])
def test_the_same_seed_gives_the_same_trace(cast: str, seed: int) -> None:
    first, _ = simulate(seed, cast=CASTS[cast])
    second, _ = simulate(seed, cast=CASTS[cast])
    assert first.trace_hash() == second.trace_hash()


def test_another_seed_gives_another_trace() -> None:
    scenario = draw_scenario(1)
    assert simulate(1, scenario)[0].trace_hash() != simulate(2, scenario)[0].trace_hash()


@pytest.mark.parametrize("cast", sorted(CASTS))
def test_processes_agree_whatever_their_hash_seeds(cast: str) -> None:
    assert _in_a_new_process(cast, "0") == _in_a_new_process(cast, "4711")


def _in_a_new_process(cast: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "headrace.testing.sim", "--cast", cast, "1", "7"]
    env = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert "trace" in done.stdout, done.stderr
    return done.stdout
