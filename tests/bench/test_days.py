"""The study of days measures claims in every situation."""

import asyncio
from dataclasses import replace
from pathlib import Path

from benchmarks.fleet import Servers
from benchmarks.studies.days import Cell, Plan, measure, table, wrong
from benchmarks.studies.stores import fresh


def test_claims_are_measured_while_days_come_and_go(servers: Servers, tmp_path: Path) -> None:
    with fresh("postgres", servers, tmp_path) as store:
        cells = asyncio.run(measure(store.url, Plan(jobs=1_000, seconds=0.3, days=2.5, step=12, strays=100)))
    assert len(cells) == 5
    assert all(cell.claims and cell.made >= 15 for cell in cells)
    assert [cell.passed > 0 for cell in cells] == [False, True, True, True, True]
    assert [cell.failed > 0 for cell in cells] == [False, False, False, False, True]
    assert len(table(cells).splitlines()) == 6
    assert [one for one in wrong(cells) if "p99" not in one] == []
    assert sum(cell.dropped for cell in cells) > 3


def test_what_is_wrong_is_told() -> None:
    good = Cell("nothing", 100, 1.0, 2.0, 0.0, 15, 15, 0)
    assert wrong([good, replace(good, p99=4.0, passed=2.5, made=18, ahead=15)]) == []
    assert wrong([good, replace(good, beside="a transaction left open", passed=2.5, made=18, ahead=12)]) == []
    [slow] = wrong([good, replace(good, p99=4.1)])
    assert slow == "nothing: p99 is 2.0 times"
    [short, late, kept] = wrong([good, replace(good, beside="ids", passed=1.9, made=18, ahead=14)])
    assert short == "ids: only 1.9 days have passed"
    assert (late, kept) == ("ids: only 14 days are ahead", "ids: 4 days are over and not dropped")
