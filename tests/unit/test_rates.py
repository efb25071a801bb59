"""Rates as people write them, and pauses."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from headrace.limits.rates import parse_rate, spell_rate
from headrace.seam.policy import FOREVER, QueuePause, Rate
from tests.unit.given import given

DAY = 86_400_000_000


@pytest.mark.parametrize(
    "text",
    [
        "100/s", "5/10m", "100/s, burst 20", "15000/s", "15000/s, burst 3", "999999/s", "1000000/s", "7/s",
        "3/s, burst 9", "333/m", "10/h", "1000/d", "450000/m", "1/d",
    ],
)  # fmt: skip
def test_a_rate_is_told_as_it_was_written(text: str) -> None:
    assert spell_rate(parse_rate(text, "rate")) == text


@given(st.integers(1, 1_000_000), st.sampled_from("smhd"), st.none() | st.integers(1, 1_000_000))
def test_what_is_told_of_a_rate_can_be_written(jobs: int, unit: str, burst: int | None) -> None:
    text = f"{jobs}/{unit}" + ("" if burst is None else f", burst {min(burst, 20 * jobs)}")
    rate = parse_rate(text, "rate")
    assert parse_rate(spell_rate(rate), "rate") == rate


@given(st.integers(1, DAY), st.integers(1, 999_999_999))
def test_so_can_that_of_any_rate(every: int, burst: int) -> None:
    rate = Rate(every, max(1, min(burst, 30 * DAY // every)))
    assert parse_rate(spell_rate(rate), "rate") == rate


def test_a_pause_ends_after_a_time_or_by_hand() -> None:
    pauses = (QueuePause("q", lasts=5), QueuePause("q"), QueuePause("q", paused=False))
    assert [pause.until(100) for pause in pauses] == [105, FOREVER, 0]


def test_a_pause_is_of_a_tenant_or_of_a_task() -> None:
    with pytest.raises(ValueError, match="names both: make two of it"):
        QueuePause("q", tenant="a", task="t")
