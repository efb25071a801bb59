"""Hypothesis without a deadline: a busy machine is no counterexample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import settings
from hypothesis.strategies import SearchStrategy

Test = Callable[..., None]


def given(*strategies: SearchStrategy[Any], examples: int = 100) -> Callable[[Test], Test]:
    """``hypothesis.given``, with so many examples and all the time it takes."""

    def decorate(test: Test) -> Test:
        return settings(deadline=None, max_examples=examples)(hypothesis.given(*strategies)(test))

    return decorate
