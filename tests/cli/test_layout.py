"""Projects of several modules, from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import Process, Run

Start = Callable[..., Process]
RunJson = Callable[..., Any]

JOBS = "from headrace import App\napp = App('sqlite:///shop.db', include=['shop.emails', 'shop.*.tasks'])\n"
TASK = "from shop.jobs import app\n\n@app.task\ndef send(n: int) -> int:\n    return n\n"


def write(project: Path, **modules: str) -> None:
    for name, code in modules.items():
        path = project / "shop" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(code)


def test_every_command_finds_the_tasks(project: Path, run_json: RunJson, start: Start) -> None:
    write(project, jobs=JOBS, emails=TASK, billing__tasks=TASK)
    where = ("--app", "shop.jobs:app")
    jobs = [
        run_json("enqueue", task, *where, "--args", '{"n": 7}')["id"]
        for task in ("shop.emails.send", "shop.billing.tasks.send")
    ]
    assert start("worker", "shop.jobs:app", "--burst").ended() == 0
    assert [run_json("job", "show", job, *where)["result"] for job in jobs] == [7, 7]


def test_what_is_not_there_is_named(project: Path, run: Run, start: Start) -> None:
    write(project, jobs=JOBS, emails="")
    told = run("enqueue", "x", "--app", "shop.jobs:app", code=2).stderr
    assert "no module matches 'shop.*.tasks' below" in told
    write(project, billing__tasks="import no_such_library")
    told = run("enqueue", "x", "--app", "shop.jobs:app", code=2).stderr
    assert "No module named 'no_such_library'" in told
    assert "tasks.py, line 1" in told
    write(project, billing__tasks="")
    worker = start("worker", "shop.jobs:app")
    assert worker.ended() == 2
    told = "".join(worker.lines)
    assert "this app has no tasks" in told
    assert "shop.emails, shop.billing.tasks, which it includes, have none" in told
