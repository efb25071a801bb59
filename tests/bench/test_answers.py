"""The study of answers measures what callers wait for."""

import asyncio
from pathlib import Path

from benchmarks.studies.answers import measure, table


def test_answers_are_measured(tmp_path: Path) -> None:
    cell = asyncio.run(measure(f"sqlite:///{tmp_path}/jobs.db", 2, 6))
    assert (cell.callers, cell.answers) == (2, 6)
    assert 0 < cell.p50 <= cell.p99 <= cell.most
    assert len(table([("sqlite", cell)]).splitlines()) == 2
