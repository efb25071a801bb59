"""The study of answers measures what callers wait for."""

import asyncio
from dataclasses import replace
from pathlib import Path

from benchmarks.studies.answers import measure, table, wrong


def test_answers_are_measured(tmp_path: Path) -> None:
    cell = asyncio.run(measure(f"sqlite:///{tmp_path}/jobs.db", 2, 6))
    assert (cell.callers, cell.answers) == (2, 6)
    assert 0 < cell.p50 <= cell.p99 <= cell.most
    assert len(table([("sqlite", cell)]).splitlines()) == 2
    assert wrong([("sqlite", replace(cell, late=0, p99=51.0))]) == []  # several callers share the machine
    assert wrong([("sqlite", replace(cell, callers=1, late=0, p99=50.0))]) == []
    assert len(wrong([("sqlite", replace(cell, callers=1, late=1, p99=51.0))])) == 2
