"""The studies of sheets and hot tables, small: what they show must hold at any size."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from benchmarks.studies import hot, sheets
from benchmarks.studies.stores import Fresh


async def test_a_hot_table_stays_as_large_as_a_week_and_the_control_grows(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    swept = await hot.measure(f"sqlite:///{tmp_path}/a/jobs.db", "sqlite", 12, 60, 20, swept=True)
    grown = await hot.measure(f"sqlite:///{tmp_path}/b/jobs.db", "sqlite", 12, 60, 20, swept=False)
    assert {one.rows for one in swept[7:]} == {7 * 60}
    assert swept[-1].bytes <= swept[7].bytes * 1.2
    assert [one.rows for one in grown] == [60 * day for day in range(1, 13)]
    assert grown[-1].bytes > swept[-1].bytes
    assert swept[-1].subjects == 12 * 20
    assert "sqlite" in hot.table([*swept, *grown])
    picture = ElementTree.fromstring(hot.plot([*swept, *grown]))
    assert sum(part.tag.endswith("polyline") for part in picture) == 5


def test_every_shape_holds_all_subjects(tmp_path: Path) -> None:
    plan = sheets.Plan(subjects=300, sizes=(64,), visits=1, one_by_one=50)
    cells = []
    for name in ("rows", "indexed", "hashed"):
        found = Fresh(f"sqlite:///{tmp_path}/{name}.db", None, "")
        cells.append(sheets.measure(found, "sqlite", name, 64, plan))
    assert "hashed" in sheets.table(cells)
