"""Two commits in one run: what is said of their figures."""

from __future__ import annotations

from benchmarks.compare import report
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
        "10.0",
        "to",
        "30.0",
        "1.00",
        "to",
        "25.0",
    ]
