"""Two commits in one run: what is said of their figures."""

from __future__ import annotations

import pytest
from benchmarks.compare import report, verdict, what_is_worse
from benchmarks.results import Result, Run


def run(**figures: float) -> Run:
    """A run of one system with these figures."""
    found = [Result("sqlite", "headrace", name, "µs", "", "", [value], False) for name, value in figures.items()]
    return Run({}, results=found)


def test_each_figure_of_both_has_its_medians_and_their_ratio() -> None:
    before = [run(drain=10.0, gone=1.0), run(drain=30.0, gone=1.0), run(drain=20.0, gone=1.0)]
    now = [run(drain=25.0, new=1.0), run(drain=15.0, new=1.0), run(drain=1.0, new=1.0)]
    head, line = report("abc", before, now)
    assert head.split()[2:4] == ["abc", "this"]
    assert line.split() == [
        "headrace",
        "drain",
        "20.0",
        "µs",
        "15.0",
        "µs",
        "0.750",
        "noise",
        "10.0",
        "to",
        "30.0",
        "1.00",
        "to",
        "25.0",
    ]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ([10.0, 30.0, 20.0], [31.0, 32.0, 33.0], "better"),
        ([10.0, 30.0, 20.0], [9.0, 1.0, 5.0], "worse"),
        ([10.0, 30.0, 20.0], [1.0, 10.0, 2.0], "noise"),
        ([10.0, 30.0, 20.0], [30.0, 90.0, 80.0], "noise"),
        ([10.0, 10.0], [10.0, 10.0], "same"),
    ],
)
def test_a_figure_is_worse_only_beyond_the_spread_of_both(before: list[float], now: list[float], said: str) -> None:
    assert verdict(before, now, more_is_better=True) == said
    other_way = {"better": "worse", "worse": "better"}.get(said, said)
    assert verdict(before, now, more_is_better=False) == other_way


def test_only_what_counts_is_named_in_the_end() -> None:
    before = [run(enqueue=1.0, drain=1.0, wal_small=5.0, wal_small_work=1.0, pickup_p99=1.0, gone=1.0)] * 2
    now = [run(enqueue=0.5, drain=1.0, wal_small=6.0, wal_small_work=2.0, pickup_p99=n, new=9.0) for n in (1.0, 9.0)]
    assert what_is_worse(before, now) == ["headrace wal_small"]
    assert what_is_worse(now, before) == ["headrace enqueue"]
