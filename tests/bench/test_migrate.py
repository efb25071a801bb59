"""The study of migration moves jobs while others are enqueued and run, and says what is wrong."""

import asyncio
import copy
import functools
import operator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.studies import migrate
from benchmarks.studies.migrate import Way, problems, roll_back, travel


def test_a_store_moves_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "_CALM", 0.5)
    monkeypatch.setattr(migrate, "_LIVES", 0.05)
    way = Way("SQLite to SQLite", f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db")
    [found] = asyncio.run(travel([way], 60))
    assert [text for text in problems(found) if "p99" not in text] == []
    assert found["ran"] > 0


def test_it_goes_back_from_every_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "_LIVES", 0.05)
    way = Way("SQLite to SQLite", f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db")
    found = asyncio.run(roll_back(way, 500))
    assert [text for text in problems(found) if "began in" not in text] == []
    assert list(found["phases"]) == ["shadow", "dual", "ready", "cutover", "moved"]


GOOD: dict[str, Any] = {
    "way": "w", "jobs": 100, "verdict": {"moved": 100, "lost": 0, "doubled": 0}, "same": True, "ran_twice": 0,
    "kills": {"start": 1, "cutover": 3, "finish": 1},
    "producers": {"before": {"p99": 1.0}, "while jobs move": {"p99": 9.0}, "after": {"p99": 4.0}},
    "phases": {phase: {"from": phase, "kills": 1, "same": True}
               for phase in ("shadow", "dual", "ready", "cutover", "moved")},
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("verdict.lost", 1, "1 jobs lost"),
        ("verdict.moved", 7, "only 7 jobs moved"),
        ("ran_twice", 2, "2 jobs ran_twice"),
        ("same", False, "another number of jobs"),
        ("kills.finish", 0, "finish was never killed"),
        ("phases.ready.from", "cutover", "the way back from ready began in cutover"),
        ("phases.moved.kills", 0, "the way back from moved was never killed"),
        ("phases.dual.same", False, "the way back from dual"),
        ("producers.after.p99", 1.0, "9.0 times as much as with the slower store alone"),
    ],
)
def test_what_is_wrong_is_said(path: str, value: object, problem: str) -> None:
    assert problems(GOOD) == []
    found: dict[str, Any] = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    functools.reduce(operator.getitem, way, found)[last] = value
    [said] = problems(found)
    assert problem in said


def test_a_phase_without_a_way_back_is_said() -> None:
    phases = {phase: one for phase, one in GOOD["phases"].items() if phase != "ready"}
    assert problems(GOOD | {"phases": phases}) == ["w: there was no way back from ready"]
