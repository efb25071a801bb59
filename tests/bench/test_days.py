"""The study of days measures claims in every situation."""

import asyncio
from pathlib import Path

from benchmarks.fleet import Servers
from benchmarks.studies.days import Plan, measure, table
from benchmarks.studies.stores import fresh


def test_claims_are_measured_while_days_come_and_go(servers: Servers, tmp_path: Path) -> None:
    with fresh("postgres", servers, tmp_path) as store:
        cells = asyncio.run(measure(store.url, Plan(jobs=1_000, seconds=0.3, strays=100)))
    assert len(cells) == 5
    assert all(cell.claims and cell.made >= 15 for cell in cells)
    assert [cell.passed > 0 for cell in cells] == [False, True, True, True, True]
    assert [cell.failed > 0 for cell in cells] == [False, False, False, False, True]
    assert len(table(cells).splitlines()) == 6
