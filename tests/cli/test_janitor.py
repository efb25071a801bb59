"""The janitor from the shell."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import DEADLINE, Run

RunJson = Callable[..., Any]
Shop = Callable[..., Any]
APP = ("--app", "shop")


def test_rules_are_shown_changed_and_removed(shop: Shop, run: Run, run_json: RunJson) -> None:
    run("enqueue", "send", *APP)
    assert [rule["age"] for rule in run_json("janitor", "rules", *APP)["rules"]] == ["1d", "1d", "7d"]
    run("janitor", "keep", "30d", "--state", "failed", "--queue", "mail", *APP)
    run("janitor", "keep", "forever", "--state", "completed", *APP)
    shown = run("janitor", "rules", *APP).stdout
    assert "for ever" in shown
    assert "30d" in shown
    assert "1 rule removed" in run("janitor", "forget", "--state", "completed", *APP).stderr
    assert '; or "forever"' in run("janitor", "keep", "36500d", *APP, code=2).stderr
    assert "got both" in run("janitor", "run", "--force", "--every", "1h", *APP, code=2).stderr
    assert "expected a duration" in run("janitor", "keep", "soon", *APP, code=2).stderr


def test_a_run_is_previewed_done_and_logged(shop: Shop, run: Run, run_json: RunJson) -> None:
    run("enqueue", "send", *APP)
    [job] = run_json("job", "list", *APP)["jobs"]
    run("job", "cancel", job["id"], *APP)
    run("janitor", "keep", "0s", "--state", "cancelled", "--count", "0", *APP)
    plan = run_json("janitor", "preview", *APP)
    assert {step["target"]: step["deleted"] for step in plan["steps"]} == {"completed": 0, "cancelled": 1, "failed": 0}
    done = run_json("janitor", "run", *APP)
    assert done["steps"] == plan["steps"] or done["steps"][1]["deleted"] == 1
    [logged] = run_json("janitor", "log", *APP)["runs"]
    assert logged["steps"] == done["steps"]
    assert "cancelled" in run("janitor", "log", *APP).stdout


def test_a_stop_shows_the_plan_and_can_be_overruled(run: Run, run_json: RunJson) -> None:
    jobs, strict = ("--app", "jobs"), {"HEADRACE_RETENTION__SAFETY__FLOOR": "1"}
    for _ in range(3):
        run("enqueue", "jobs.boom", *jobs)
    for job in run_json("job", "list", *jobs)["jobs"]:
        run("job", "cancel", job["id"], *jobs)
    store = ("--url", "sqlite:///jobs.db")
    run("janitor", "keep", "0s", "--state", "cancelled", "--count", "1000", *store)
    later = strict | {"HEADRACE_PATIENCE": "0s"}
    stopped = run("janitor", "run", *store, code=4, env=later)
    assert "more than 1 of 3 cancelled jobs" in stopped.stderr
    assert "cancelled" in stopped.stdout
    assert "cancelled        3" in run("janitor", "run", "--force", *store, env=later).stdout
    assert [one["forced"] for one in run_json("janitor", "log", *store)["runs"]] == [True, False]


def test_it_can_be_a_process_of_its_own(run: Run, project: Path) -> None:
    run("enqueue", "jobs.boom", "--app", "jobs")
    command = [sys.executable, "-m", "headrace", "janitor", "run", "--every", "1h", "--url", "sqlite:///jobs.db"]
    process = subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert "0 records deleted" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


def test_a_file_is_shrunk_and_other_stores_are_not(shop: Shop, run: Run, run_json: RunJson) -> None:
    jobs = ("--app", "jobs")
    run("enqueue", "jobs.boom", "--arg", f'text="{secrets.token_hex(50_000)}"', *jobs)
    [job] = run_json("job", "list", *jobs)["jobs"]
    run("job", "cancel", job["id"], *jobs)
    run("janitor", "keep", "0s", "--state", "cancelled", "--count", "0", *jobs)
    run("janitor", "run", *jobs, env={"HEADRACE_PATIENCE": "0s"})
    found = run_json("janitor", "shrink", "--url", "sqlite:///jobs.db")
    assert 0 < found["after"] <= found["before"] - 40_000
    assert "only a SQLite store" in run("janitor", "shrink", *APP, code=2).stderr


def test_what_is_gone_is_counted(shop: Shop, run: Run, run_json: RunJson) -> None:
    run("enqueue", "send", *APP)
    [job] = run_json("job", "list", *APP)["jobs"]
    run("job", "cancel", job["id"], *APP)
    assert run_json("janitor", "removed", *APP)["removed"] == []
    run("janitor", "keep", "0s", "--state", "cancelled", "--count", "0", *APP)
    run("janitor", "run", *APP, env={"HEADRACE_PATIENCE": "0s"})
    [counted] = run_json("janitor", "removed", "--by", "state", "--by", "task", *APP)["removed"]
    assert (counted["state"], counted["task"], counted["jobs"]) == ("cancelled", "send", 1)
    assert "cancelled" in run("janitor", "removed", *APP).stdout
    assert run_json("janitor", "removed", "--until", "2020-01-01", *APP)["removed"] == []
