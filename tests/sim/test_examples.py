"""The examples in the docstrings run."""

from __future__ import annotations

import doctest

import pytest

import headrace.testing.sim
import headrace.testing.sim.loop


@pytest.mark.parametrize("module", [headrace.testing.sim, headrace.testing.sim.loop], ids=lambda m: m.__name__)
def test_examples(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted
    assert not results.failed
