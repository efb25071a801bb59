"""What a chaos run showed is kept until the same scenario shows something else."""

from pathlib import Path

import msgspec
from chaos.outcome import Outcome
from chaos.worker import make_app


def outcome(scenario: str, seed: int) -> Outcome:
    return Outcome(scenario=scenario, backend="sqlite", asked={}, reached={"jobs": 1}, ok=True, seed=seed)


def test_a_scenario_that_is_run_again_replaces_its_own_line_only(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.jsonl"
    for scenario, seed in (("kill_workers", 1), ("poison", 2), ("kill_workers", 3)):
        outcome(scenario, seed).save(path)
    found = [msgspec.json.decode(line, type=Outcome) for line in path.read_bytes().splitlines()]
    assert [(each.scenario, each.seed) for each in found] == [("poison", 2), ("kill_workers", 3)]
    assert [each.name for each in path.parent.iterdir()] == ["latest.jsonl"]


def test_retention_takes_no_record_that_a_scenario_looks_for() -> None:
    retention = make_app("memory://").client.settings.retention
    for keep in (retention.completed, retention.cancelled, retention.failed):
        assert keep.count >= 10**9
        assert keep.bytes >= 10**9 * 1_000
