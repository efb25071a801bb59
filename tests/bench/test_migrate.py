"""The study of migration moves jobs while others are enqueued and run, and says what is wrong."""

import asyncio
from pathlib import Path

import pytest
from benchmarks.studies import migrate
from benchmarks.studies.migrate import Way, problems, travel


def test_a_store_moves_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "_CALM", 0.5)
    way = Way("SQLite to SQLite", f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db")
    [found] = asyncio.run(travel([way], 60))
    assert [text for text in problems(found) if "p99" not in text] == []
    assert found["ran"] > 0


def test_what_is_wrong_is_said() -> None:
    found = {
        "way": "w", "jobs": 100, "verdict": {"moved": 100, "lost": 1, "doubled": 0}, "ran_twice": 2, "same": False,
        "producers": {"before": {"p99": 1.0}, "while jobs move": {"p99": 9.0}},
    }  # fmt: skip
    assert len(problems(found)) == 4
