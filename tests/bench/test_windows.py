"""The study of PostgreSQL and Valkey together runs, and says what is missed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.studies import streams
from benchmarks.studies.streams import MEMORY, Cell, Window, main, verdict

PLAIN = Cell("postgres", "small", 10, 600.0, 400.0, 100.0, 0.0, 1_000.0, 1_000.0, 5.0)
OURS = Cell("streams", "small", 10, 300.0, 200.0, 50.0, 40.0, 1_000.0, 1_400.0, 1.0)
WINDOW = Window(10, 1.0, MEMORY, 10)


def test_each_depth_is_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CONSUMERS", 1)
    monkeypatch.setattr(streams, "_GONE", 2.0)
    output = tmp_path / "streams.jsonl"
    depths = ["--depth", "150", "--depth", "250"]
    code = main(["--quick", *depths, "--kind", "small", "--output", str(output)])
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["depth"] for one in lines if one["kind"] == "cell"] == [150, 150, 250, 250]
    found = [one for one in lines if one["kind"] == "window"]
    assert [one["depth"] for one in found] == [150, 250]
    assert all(one["consumers"] > 1 for one in found), "killed workers leave theirs for a minute"
    assert code == 1


@pytest.mark.parametrize(
    ("ours", "window", "missed"),
    [
        (OURS, WINDOW, []),
        (replace(OURS, wal_run=400.0), WINDOW, ["wal 70%"]),
        (replace(OURS, pickup=2.5), WINDOW, ["pick-up 2.50 ms"]),
        (replace(OURS, drained=1_200.0), WINDOW, ["drained 120%"]),
        (OURS, replace(WINDOW, rebuilt=61.0), ["all in a window again in 61.0 s"]),
        (OURS, replace(WINDOW, memory=MEMORY + 1), [f"{MEMORY + 1:,} B in Valkey"]),
        (OURS, replace(WINDOW, consumers=11), ["11 consumers stayed"]),
    ],
)
def test_what_is_missed_is_said(ours: Cell, window: Window, missed: list[str]) -> None:
    said = [line for line in verdict([PLAIN, ours], [window]) if line.startswith("MISSED")]
    assert len(said) == len(missed)
    assert all(what in line for line, what in zip(said, missed, strict=True))
