"""Hot tables and trackers from the shell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

RunJson = Callable[..., Any]
APP = ("--app", "store")
MODULE = """
from datetime import datetime
from headrace import App
from msgspec import Struct

app = App("sqlite:///jobs.db")


class Video(Struct):
    id: str
    found_at: datetime | None = None


async def look(subjects):
    return None


videos = app.table("videos", Video, keep="7d", age="found_at", floor=1)
watch = app.tracker("watch", look, tiers={"HOURLY": "1h", "DAILY": "1d"})


@app.task(name="fill")
async def fill():
    await videos.create()
    await videos.put_many([Video(str(n), datetime(2020, 1, 1)) for n in range(5)])
"""


@pytest.fixture(autouse=True)
def module(project: Path) -> None:
    (project / "store.py").write_text(MODULE)


def test_tables_are_listed_swept_and_protected(run: Run, run_json: RunJson) -> None:
    run("enqueue", "fill", *APP)
    run("worker", "store", "--burst")
    [table] = run_json("table", "list", *APP)["tables"]
    assert (table["table"], table["rows"], table["expired"]) == ("videos", 5, 5)
    assert "2020" not in run("table", "show", "videos", *APP).stdout
    assert "videos" in run("table", "list", *APP).stdout
    stopped = run("table", "sweep", "videos", *APP, code=4)
    assert "the newest row is" in stopped.stderr
    run("table", "protect", "videos", *APP)
    assert run_json("table", "protected", *APP) == {"protected": ["videos"]}
    assert "protected in the store" in run("table", "sweep", "videos", "--force", *APP, code=2).stderr
    run("table", "unprotect", "videos", *APP)
    assert "is not protected" in run("table", "unprotect", "videos", *APP, code=3).stderr
    assert run_json("table", "preview", "videos", *APP)["deleted"] == 5
    assert "table videos" in run("janitor", "preview", *APP).stdout
    assert run_json("table", "sweep", "videos", "--force", *APP)["deleted"] == 5
    assert "table videos" in run("janitor", "log", *APP).stdout
    assert "it declares: videos" in run("table", "show", "films", *APP, code=3).stderr
    assert "needs an app" in run("table", "list", "--url", "sqlite:///jobs.db", code=2).stderr


def test_trackers_are_listed_and_their_subjects_changed(run: Run, run_json: RunJson) -> None:
    run("enqueue", "fill", *APP)
    assert "2 new subjects" in run("tracker", "add", "watch", "a", "b", *APP).stderr
    assert "1 subject moved" in run("tracker", "move", "watch", "DAILY", "a", *APP).stderr
    assert run_json("tracker", "show", "watch", "a", *APP)["tier"] == "DAILY"
    assert "never" in run("tracker", "show", "watch", "b", *APP).stdout
    counts = run_json("tracker", "list", *APP)["trackers"]["watch"]
    assert {tier: one["subjects"] for tier, one in counts.items()} == {"HOURLY": 1, "DAILY": 1}
    assert "1 subject removed" in run("tracker", "remove", "watch", "a", *APP).stderr
    assert "is not tracked" in run("tracker", "show", "watch", "a", *APP, code=3).stderr
    assert "it has: watch" in run("tracker", "add", "other", "a", *APP, code=3).stderr
    assert "watch" in run("tracker", "list", *APP).stdout
