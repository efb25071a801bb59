"""Lengths of time as people write them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st

from headrace.core.durations import LONGEST, micros, spell
from headrace.errors import ConfigError
from tests.unit.given import given


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (0, 0),
        (1, 1_000_000),
        (0.25, 250_000),
        (1e-6, 1),
        (-0.0, 0),
        ("250ms", 250_000),
        ("1us", 1),
        ("30s", 30_000_000),
        ("1.5m", 90_000_000),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("2d", 172_800_000_000),
        (timedelta(days=1, microseconds=1), 86_400_000_001),
        (timedelta(0), 0),
        ("3660d", LONGEST),
        (LONGEST / 1e6, LONGEST),
        (timedelta(days=3_660), LONGEST),
    ],
)
def test_understood(value: Any, length: int) -> None:
    assert micros(value) == length


@pytest.mark.parametrize(
    "value",
    ["", " ", "s", "10", "ten seconds", "1h30", "-1s", "1e3s", "1,5s", "1.s", ".5s", "1S", "1s;", "s1", "1w", "1y"],
)
def test_texts_that_are_no_lengths(value: str) -> None:
    with pytest.raises(ConfigError, match="lease: expected a duration like '30s'"):
        micros(value, "lease")


@pytest.mark.parametrize("value", [None, True, False, [], b"1s", 1j, object(), {}])
def test_other_types(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"lease: expected seconds.*got {type(value).__name__}"):
        micros(value, "lease")


@pytest.mark.parametrize("value", [-1, -1e-6, timedelta(microseconds=-1), "3661d", LONGEST / 1e6 + 1, timedelta.max])
def test_out_of_range(value: Any) -> None:
    with pytest.raises(ConfigError, match="lease: expected"):
        micros(value, "lease")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 10**40, -(10**40), 1e308])
def test_numbers_beyond_all_measure(value: Any) -> None:
    with pytest.raises(ConfigError, match="ten years"):
        micros(value)


def test_numbers_that_cannot_be_held_or_shown() -> None:
    """Saying that it is too much must not fail itself."""
    values: list[Any] = [10**5_000, "9" * 400 + "s", "1" + "0" * 400 + "d", "9" * 5_000 + "s"]
    for value in values:
        with pytest.raises(ConfigError, match="lease"):
            micros(value, "lease")


def test_a_long_text_is_refused_quickly() -> None:
    """Linear, not quadratic: a text of digits is no way to keep a server busy."""
    before = time.process_time()
    with pytest.raises(ConfigError) as caught:
        micros("1" * 6_000, "delay")
    assert time.process_time() - before < 0.5
    assert len(str(caught.value)) < 500


def test_digits_of_other_scripts_are_no_digits() -> None:
    with pytest.raises(ConfigError):
        micros("١٠s")


@given(st.integers(0, LONGEST))
def test_spelling_is_read_back(length: int) -> None:
    """Exactly, when two units are enough; else to the second unit."""
    spelled = spell(length)
    read = micros(spelled)
    assert read <= length
    assert spell(read) == spelled


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "0s"),
        (1, "1us"),
        (1_001, "1ms1us"),
        (1_000_001, "1s"),
        (61_000_000, "1m1s"),
        (3_600_000_000, "1h"),
        (90_061_000_001, "1d1h"),
    ],
)
def test_spelling(length: int, text: str) -> None:
    assert spell(length) == text


@given(st.floats(0, LONGEST / 1e6), st.integers(0, 10**9))
def test_numbers_and_timedeltas_agree(seconds: float, whole: int) -> None:
    assert abs(micros(seconds) - seconds * 1e6) <= 1
    if whole * 1_000_000 <= LONGEST:
        assert micros(whole) == micros(timedelta(seconds=whole)) == micros(f"{whole}s")
