"""The study of keys tells whether they are taken."""

import asyncio
from pathlib import Path

from benchmarks.studies.keys import measure, table


def test_keys_are_looked_at_after_many_completions(tmp_path: Path) -> None:
    cell = asyncio.run(measure("sqlite", f"sqlite:///{tmp_path}/jobs.db", 2_000))
    assert (cell.held, cell.free, cell.records) == (True, 0, 2_001)
    assert len(table([cell]).splitlines()) == 2
