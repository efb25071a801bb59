"""The command measures, writes, judges, and says so."""

from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.profile import report
from benchmarks.results import Run


def test_a_small_run_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, place = tmp_path / "run.jsonl", tmp_path / "place"
    place.mkdir()
    chosen = ["--quick", "--system", "headrace-memory", "--metric", "bulk", "--metric", "counted"]
    assert main([*chosen, "--output", str(output), "--place", str(place)]) == 0
    run = Run.read(output)
    assert {result.metric for result in run.results} >= {"bulk", "trips"}
    assert run.versions["headrace-memory"]["headrace"]
    shown = capsys.readouterr().out
    assert "headrace-memory: nothing is durable" in shown
    assert "not measured  headrace-memory" in shown
    assert list(place.iterdir()) == []


def test_the_last_run_can_be_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Run({}, {"headrace-memory": {}}).write(tmp_path / "run.jsonl")
    assert main(["--targets", "--output", str(tmp_path / "run.jsonl")]) == 0
    assert "no-op async jobs per second on memory" in capsys.readouterr().out


def test_a_profile_adds_up_by_module() -> None:
    timings = [("/x/headrace/worker/trips.py", 10, "run", 100, 0.002, 0.003), ("~", 0, "<len>", 200, 0.001, 0.001)]
    text = report("headrace-memory", 100, timings, 0.004)
    assert "20.00   66.7%  headrace/worker/trips.py" in text
    assert "10.00   33.3%  built-in" in text
