"""A store moves to another one, from the shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.routing import mover
from tests.cli.conftest import Run

RunJson = Callable[..., Any]
BOTH = ("--url", "sqlite:///jobs.db -> sqlite:///other.db")


@pytest.fixture(autouse=True)
def nobody_else(project: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no other processes to wait for."""
    monkeypatch.setattr(mover, "SEEN", 0.0)


def test_a_store_moves_there_and_back_and_there(run: Run, run_json: RunJson) -> None:
    for _ in range(3):
        run("enqueue", "jobs.boom", "--app", "jobs")
    assert run_json("transfer", "plan", *BOTH)["available"] == 3
    assert "there is no transfer" in run("transfer", "status", *BOTH).stderr
    assert "phase dual" in run("transfer", "start", "--dual", "--share", "0.5", "--rate", "1000", *BOTH).stderr
    status = run_json("transfer", "status", *BOTH)
    assert (status["phase"], status["share"], status["parity"]["checked"]) == ("dual", 0.5, 0)
    assert "3 jobs moved; nothing is left" in run("transfer", "cutover", "--yes", *BOTH).stderr
    assert run_json("transfer", "status", *BOTH)["left"] == 0
    verdict = run_json("transfer", "verify", *BOTH)
    assert (verdict["departed"], verdict["arrived"], verdict["lost"], verdict["doubled"]) == (3, 3, 0, 0)
    assert len(run_json("job", "list", "--url", "sqlite:///other.db")["jobs"]) == 3
    told = run("transfer", "rollback", "--yes", *BOTH).stderr
    assert "3 jobs moved; all is in the first store" in told
    assert "0 lost, 0 doubled" in told
    assert len(run_json("job", "list", "--url", "sqlite:///jobs.db")["jobs"]) == 3
    run("transfer", "start", *BOTH)
    run("transfer", "pause", *BOTH)
    assert "headrace transfer resume" in run("transfer", "cutover", "--yes", *BOTH, code=1).stderr
    assert "3 jobs moved" in run("transfer", "resume", "--rate", "500", *BOTH).stderr
    assert run_json("transfer", "status", *BOTH)["rate"] == 500
    run("transfer", "resume", "--rate", "0", *BOTH)
    assert run_json("transfer", "status", *BOTH)["rate"] is None
    told = run("transfer", "finish", "--yes", "--insist", *BOTH).stderr
    assert "0 lost, 0 doubled" in told
    assert "second store alone" in told
    verdict = run_json("transfer", "verify", *BOTH)
    assert (verdict["departed"], verdict["arrived"], verdict["lost"], verdict["doubled"]) == (3, 3, 0, 0)
    assert run_json("transfer", "status", *BOTH)["phase"] == "done"
    assert len(run_json("job", "list", *BOTH)["jobs"]) == 3


def test_what_is_wrong_is_said(run: Run) -> None:
    run("enqueue", "jobs.boom", "--app", "jobs")
    assert "with an arrow" in run("transfer", "plan", "--url", "sqlite:///jobs.db", code=2).stderr
    assert "expected a transfer" in run("transfer", "verify", *BOTH, code=2).stderr
    assert "expected a transfer" in run("transfer", "cutover", "--yes", *BOTH, code=2).stderr


def test_shards_are_listed(run: Run, run_json: RunJson) -> None:
    url = "main = sqlite:///jobs.db | bulk = sqlite:///other.db | mail=bulk, *=main"
    shards = run_json("shard", "list", "--url", url)["shards"]
    assert [(one["name"], one["home"], one["routes"], one["waiting"]) for one in shards] == [
        ("main", True, ["*=main"], 0), ("bulk", False, ["mail=bulk"], 0),
    ]  # fmt: skip
    assert "mail=bulk" in run("shard", "list", "--url", url).stdout
    assert "expected a URL with shards" in run("shard", "list", "--url", "sqlite:///jobs.db", code=2).stderr
