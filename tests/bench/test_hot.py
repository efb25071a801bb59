"""The studies of sheets and hot tables, small: what they show must hold at any size."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.studies import hot, sheets
from benchmarks.studies.stores import Fresh

_STEP = 2**21
"""From here on SQLite writes the number of a row with a byte more."""


async def test_a_hot_table_stays_as_large_as_a_week_and_the_control_grows(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    swept = await hot.measure(f"sqlite:///{tmp_path}/a/jobs.db", "sqlite", 12, 60, 20, swept=True)
    grown = await hot.measure(f"sqlite:///{tmp_path}/b/jobs.db", "sqlite", 12, 60, 20, swept=False)
    assert {one.rows for one in swept[7:]} == {7 * 60}
    assert swept[-1].bytes <= swept[7].bytes * 1.2
    assert [one.rows for one in grown] == [60 * day for day in range(1, 13)]
    assert grown[-1].bytes > swept[-1].bytes
    assert all(one.store_bytes > one.bytes for one in swept)
    assert swept[-1].subjects == 12 * 20
    assert "sqlite" in hot.table([*swept, *grown])
    picture = ElementTree.fromstring(hot.plot([*swept, *grown]))
    assert sum(part.tag.endswith("polyline") for part in picture) == 6


async def test_a_byte_more_for_the_numbers_of_rows_makes_a_table_a_little_larger_once(tmp_path: Path) -> None:
    url, rows, days = f"sqlite:///{tmp_path}/jobs.db", 1_000, 24
    await hot.measure(url, "sqlite", 0, rows, 0, swept=True)  # makes the table
    with sqlite3.connect(tmp_path / "jobs.db") as database:
        database.execute("INSERT INTO videos (rowid, id) VALUES (?, 'before')", (_STEP - 12 * rows,))
    database.close()
    found = [one.bytes for one in await hot.measure(url, "sqlite", days, rows, 0, swept=True)]
    assert max(found[7:]) <= 1.05 * found[7]
    assert max(found[19:]) <= 1.005 * min(found[19:])


def _days(*, store: str = "postgres", size: float = 400e6, growth: float = 0.0, control: float = 60e6) -> list[hot.Day]:
    one = hot.Day(store, True, 1, 100_000, 0, 0, 100.0, 10_000, 50.0)
    week = [replace(one, day=day, bytes=int(size * min(day, 7) / 7)) for day in range(1, 91)]
    flat = [replace(day, store_bytes=int(day.bytes * (1 + growth * day.day))) for day in week]
    grown = [
        replace(one, swept=False, day=day, bytes=int(control * day), store_bytes=int(control * day))
        for day in range(1, 15)
    ]
    return [*flat, *grown]


def test_the_verdict_names_what_is_not_as_it_should_be() -> None:
    assert hot.verdict(_days()) == []
    [told] = hot.verdict(_days(growth=0.001))
    assert "grew" in told
    [told] = hot.verdict(_days(size=600e6, control=100e6))
    assert "500 MB" in told
    [told] = hot.verdict(_days(control=1e6))
    assert "control" in told
    slow = [replace(one, query_ms=100.0 * (1 + one.day / 40)) for one in _days()]
    assert "query" in " ".join(hot.verdict(slow))
    wide = [replace(one, subject_bytes=130.0) for one in _days()]
    assert "subject" in " ".join(hot.verdict(wide))
    assert "8 days" in " ".join(hot.verdict(_days()[:7]))


async def test_what_was_found_is_kept_every_evening_and_other_runs_stay(tmp_path: Path) -> None:
    output, seen = tmp_path / "hot.jsonl", list[int]()
    (tmp_path / "a").mkdir()

    def each(days: list[hot.Day]) -> None:
        hot.save(output, {"store": "sqlite", "swept": True}, days)
        seen.append(len(hot.read(output)))

    await hot.measure(f"sqlite:///{tmp_path}/a/jobs.db", "sqlite", 3, 20, 5, swept=True, each=each)
    assert seen == [1, 2, 3]
    hot.save(output, {"store": "sqlite", "swept": False}, _days(store="sqlite")[-2:])
    hot.save(output, {"store": "postgres", "swept": True}, _days()[:4])
    assert len(hot.read(output)) == 9
    hot.save(output, {"store": "postgres", "swept": True}, _days()[:1])
    assert [(one.store, one.swept) for one in hot.read(output)].count(("postgres", True)) == 1
    assert len(hot.read(output)) == 6


def test_every_shape_holds_all_subjects(tmp_path: Path) -> None:
    plan = sheets.Plan(subjects=300, sizes=(64,), visits=1, one_by_one=50)
    cells = []
    for name in ("rows", "indexed", "hashed"):
        found = Fresh(f"sqlite:///{tmp_path}/{name}.db", None, "")
        cells.append(sheets.measure(found, "sqlite", name, 64, plan))
    assert "hashed" in sheets.table(cells)
