"""The study of last chances counts what runs at once, from what the processes wrote down."""

import asyncio
from dataclasses import replace
from pathlib import Path

from benchmarks.studies.chances import BUSY, GOOD, IDLE, NEAR, QUICK, judge, measure, read, table, verdict
from benchmarks.studies.stores import Fresh


def test_books_are_read_and_judged(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("1.0 1 0\n1.1 1 0\n2.0 -1 0\n2.2 1 0\n9.0 -1 0\n9.0 -1 0\n9.5 1")
    (tmp_path / "2").write_text("1.5 1 1\n1.8 -1 1\n")
    cell = judge(read(tmp_path), 2, 1, 1.25)
    assert (cell.least, cell.when, cell.looks, cell.beside, cell.processes) == (1, 0.8, 22, 0, 1)
    assert cell.near == 1
    assert (cell.first, cell.last) == (0.2, 0.2)
    assert len(table("sqlite", [cell]).splitlines()) == 2


def test_a_small_fleet_is_measured(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    plan = replace(QUICK, jobs=30, slots=2, seconds=0.2)
    cell = asyncio.run(measure(Fresh(f"sqlite:///{tmp_path}/jobs.db", None, ""), plan, 1, tmp_path / "books"))
    assert (cell.suspects, cell.beside, cell.processes) == (1, 0, 1)
    assert cell.least <= 5


def test_whether_slots_stayed_at_work(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("1.0 1 0\n1.1 1 0\n2.0 -1 0\n2.2 1 0\n9.0 -1 0\n9.0 -1 0\n9.5 1")
    cell = replace(judge(read(tmp_path), 2, 1, 1.25), suspects=1)
    assert verdict([replace(cell, near=9, least=9)], 10) == GOOD
    assert verdict([replace(cell, near=9, least=8)], 10) == NEAR
    assert verdict([replace(cell, near=8)], 10) == IDLE
    assert verdict([replace(cell, suspects=0, near=7), replace(cell, near=7)], 10) == BUSY
    assert verdict([replace(cell, suspects=0, near=7), replace(cell, near=6)], 10) == IDLE
