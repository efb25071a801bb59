"""Dead letters as lines of JSON, and counted by what went wrong."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import Process, Run

Start = Callable[..., Process]
RunJson = Callable[..., Any]
JOBS = ("--app", "jobs:app")


def fail(start: Start, run: Run, *texts: str) -> None:
    """Dead letters with these messages."""
    for text in texts:
        run("enqueue", "boom", "--arg", f'text="{text}"', *JOBS)
    assert start("worker", "jobs:app", "--burst").ended() == 0


def test_all_of_them_are_exported_oldest_first(start: Start, run: Run, project: Path) -> None:
    fail(start, run, "one", "two")
    assert "2 dead letters exported" in run("dead", "export", "dead.jsonl", *JOBS).stderr
    lines = [json.loads(line) for line in (project / "dead.jsonl").read_text().splitlines()]
    assert [line["args"] for line in lines] == [{"text": "one"}, {"text": "two"}]
    assert [line["failures"][-1]["type"] for line in lines] == ["ValueError", "ValueError"]
    assert b"one" in b64decode(lines[0]["sections"]["parameters"])
    piped = run("dead", "export", "--queue", "mail", *JOBS).stdout.splitlines()
    assert [json.loads(line)["id"] for line in piped] == [line["id"] for line in lines]
    assert run("dead", "export", "--queue", "other", *JOBS).stdout == ""


def test_they_are_counted_by_what_went_wrong(start: Start, run: Run, run_json: RunJson) -> None:
    fail(start, run, "one", "two", "three")
    [found] = run_json("dead", "reasons", *JOBS)["reasons"]
    assert (found["queue"], found["task"], found["error"], found["jobs"]) == ("mail", "jobs.boom", "ValueError", 3)
    assert "ValueError" in run("dead", "reasons", *JOBS).stdout
    assert run_json("dead", "reasons", "--queue", "other", *JOBS)["reasons"] == []


def test_sections_whose_objects_are_gone_are_named(start: Start, run: Run, project: Path) -> None:
    env = {"HEADRACE_OBJECTS__URL": f"file://{project}/objects", "HEADRACE_OBJECTS__PARAMETERS__OVER": "0"}
    run("enqueue", "boom", "--arg", f'text="{os.urandom(400).hex()}"', *JOBS, env=env)
    assert start("worker", "jobs:app", "--burst", env=env).ended() == 0
    run("dead", "export", "dead.jsonl", *JOBS, env=env)
    assert json.loads((project / "dead.jsonl").read_text())["lost"] == {}
    for file in (project / "objects" / "segments").rglob("*"):
        if file.is_file():
            file.unlink()
    assert "1 dead letter without all sections" in run("dead", "export", "dead.jsonl", *JOBS, env=env).stderr
    [line] = [json.loads(line) for line in (project / "dead.jsonl").read_text().splitlines()]
    assert line["sections"] == {}
    assert "ObjectMissing: object segments/" in line["lost"]["parameters"]
