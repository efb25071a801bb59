"""Children answer, are bounded in time, and leave nothing behind."""

import sys
from pathlib import Path

import pytest
from benchmarks.stage import ActorFailed, Stage


def test_a_child_plays_its_role_and_its_directory_goes(tmp_path: Path) -> None:
    with Stage(tmp_path, 60) as stage:
        answer = stage.play(sys.executable, "headrace-memory", "solo", count=200, filled=False)
        assert stage.folder.exists()
    assert sum(answer["trips"].values()) >= 1
    assert sum(answer["claims"]) == 200
    assert answer["seconds"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    with Stage(tmp_path, 60) as stage, pytest.raises(ActorFailed, match=r"headrace-memory url: .*Error"):
        stage.play(sys.executable, "headrace-memory", "url", nonsense=True)


def test_a_child_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with Stage(tmp_path, 0.05) as stage, pytest.raises(ActorFailed, match="took too long"):
        stage.play(sys.executable, "headrace-memory", "enqueue", count=10)


def test_leaving_the_stage_ends_a_child_that_still_runs(tmp_path: Path) -> None:
    with Stage(tmp_path, 60) as stage:
        actor = stage.start(sys.executable, "headrace-memory", "enqueue", count=10)
        actor.ready()
    assert actor.ended
