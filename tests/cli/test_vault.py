"""The vault from the shell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

RunJson = Callable[..., Any]
JOBS = ("--app", "jobs")


@pytest.fixture(autouse=True)
def vault(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vault in the project."""
    monkeypatch.setenv("HEADRACE_VAULT__URL", f"file://{project}/vault")


def test_it_is_asked_listed_checked_and_left(run: Run, run_json: RunJson) -> None:
    run("enqueue", "jobs.boom", *JOBS)
    [job] = run_json("job", "list", *JOBS)["jobs"]
    run("job", "cancel", job["id"], *JOBS)
    assert "0 jobs archived" in run("vault", "archive", *JOBS).stderr, "it has ended just now"
    rows = run_json("vault", "query", "SELECT id, task, state FROM jobs", *JOBS)["rows"]
    assert rows == [{"id": job["id"], "task": "jobs.boom", "state": "cancelled"}]
    assert "jobs.boom" in run("vault", "query", "SELECT task FROM jobs", *JOBS).stdout
    assert run_json("vault", "ls", *JOBS)["files"] == []
    assert run_json("vault", "compact", *JOBS) == {"made": 0, "removed": 0}
    assert run_json("vault", "verify", *JOBS) == {"files": 0, "jobs": 0, "problems": []}
    assert "cannot" not in run("vault", "leave", "--yes", *JOBS).stderr


def test_a_job_runs_again(run: Run, run_json: RunJson) -> None:
    run("enqueue", "jobs.boom", *JOBS)
    [job] = run_json("job", "list", *JOBS)["jobs"]
    run("job", "cancel", job["id"], *JOBS)
    done = run_json("vault", "replay", f"id = '{job['id']}'", *JOBS)
    assert done == {"enqueued": [], "requeued": [job["id"]], "refused": []}
    [job] = run_json("job", "list", *JOBS)["jobs"]
    assert job["state"] == "available"
