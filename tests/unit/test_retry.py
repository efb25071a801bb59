"""When the next attempt is made."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import strategies as st

from headrace import RetryPolicy, exponential, forever, gentle, immediate, never, persistent
from headrace.errors import ConfigError
from tests.unit.given import given

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (exponential(jitter=False), [1, 2, 4, 8, 16]),
        (persistent(jitter=False), [2, 4, 8, 16, 32]),
        (gentle(jitter=False), [30, 60, 120, 240, 480, 600, 600]),
        (immediate(), [0, 0, 0]),
        (exponential(base="10s", factor=3, cap="1m", jitter=False), [10, 30, 60, 60]),
        (exponential(base="2h", cap="1h", jitter=False), [3_600, 3_600]),
        (exponential(factor=1, jitter=False), [1, 1, 1]),
    ],
)
def test_presets(policy: RetryPolicy, seconds: list[int]) -> None:
    """000-86, 003-7, U-3, decision 22: attempt n waits base · factor^(n-1), up to the cap."""
    assert [policy.delay(n, Random(0)) for n in range(1, len(seconds) + 1)] == [s * SECOND for s in seconds]


def test_attempts() -> None:
    assert [p.max_attempts for p in (exponential(), persistent(), gentle())] == [5, 20, 5]
    assert [p.max_attempts for p in (immediate(), never())] == [3, 1]
    assert forever().max_attempts > 10**9


@given(st.integers(1, 10**6), st.integers(0, 2**32), st.integers(0, 10**12), st.integers(0, 10**12))
def test_jitter_stays_within_bounds(attempt: int, seed: int, base: int, cap: int) -> None:
    policy = RetryPolicy(base=base, cap=cap)
    assert 0 <= policy.delay(attempt, Random(seed)) <= min(cap, base * 2.0 ** min(attempt - 1, 64))


def test_jitter_spreads() -> None:
    """Decision 19: a herd that failed together does not come back together."""
    delays = {exponential(base="1h").delay(1, Random(seed)) for seed in range(100)}
    assert len(delays) == 100
    assert max(delays) - min(delays) > 1_800 * SECOND


def test_late_attempts_do_not_overflow() -> None:
    assert exponential(jitter=False).delay(10**9, Random(0)) == 3_600 * SECOND


@pytest.mark.parametrize("factor", [1e5, 1e100, 1e308])
def test_steep_factors_do_not_overflow(factor: float) -> None:
    policy = exponential(factor=factor, jitter=False)
    assert [policy.delay(n, Random(0)) for n in (2, 5, 100)] == [3_600 * SECOND] * 3


def test_which_errors() -> None:
    """003-9: those in ``give_up_on`` never; with ``retry_on``, only those in it."""
    anything = exponential()
    assert anything.allows(ValueError())
    assert anything.allows(BaseException())
    some = exponential(retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert some.allows(ConnectionError())
    assert not some.allows(FileNotFoundError())
    assert not some.allows(ValueError())


@pytest.mark.parametrize("attempts", [0, -1])
def test_at_least_one_attempt(attempts: int) -> None:
    with pytest.raises(ConfigError, match=f"max_attempts: expected a whole number of at least 1, got {attempts}"):
        exponential(attempts)


def test_policies_are_values() -> None:
    assert exponential(3) == exponential(3)
    assert hash(exponential(3)) == hash(exponential(3))
    with pytest.raises(AttributeError):
        exponential().max_attempts = 5  # type: ignore[misc]


def test_a_policy_made_by_hand_is_checked_too() -> None:
    """``RetryPolicy`` is public: what ``exponential`` refuses, it refuses."""
    for bad in ({"max_attempts": 0}, {"base": -1}, {"factor": 0.5}, {"factor": float("nan")}, {"cap": -1}):
        with pytest.raises(ConfigError):
            RetryPolicy(**bad)  # type: ignore[arg-type]


def test_a_whole_factor_is_a_number_like_any_other() -> None:
    """Never exact powers with a million digits."""
    policy = RetryPolicy(factor=2, base=1, cap=10**6, jitter=False)  # an int, as people write it
    assert [policy.delay(n, Random(1)) for n in (1, 4, 10_000_000)] == [1, 8, 10**6]
    with pytest.raises(ConfigError, match="factor"):
        RetryPolicy(factor=10**400)
