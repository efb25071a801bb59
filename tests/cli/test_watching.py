"""The command line for operators: filters, keys, operations, workers, settings, reports."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace import Admin, App, Every, NewJob, Overview, QueueView
from headrace.cli import top
from headrace.cli.top import Rates, rows, screen
from headrace.core.feed import Digest, Happening, Tally
from headrace.errors import Unavailable
from headrace.web.address import parse_address
from tests.cli.conftest import Run
from tests.web_client import ask

URL = ("--url", "sqlite:///jobs.db")
RunJson = Callable[..., Any]


@pytest.fixture
def dead(run: Run, run_json: RunJson, start: Any) -> str:
    """Three jobs that completed, and one dead letter; its id."""
    for who in ("ada", "bo", "cy"):
        run("enqueue", "hello", "--app", "jobs", "--arg", f'who="{who}"', "--key", who)
    found: str = run_json("enqueue", "boom", "--app", "jobs")["id"]
    assert start("worker", "jobs", "--burst").ended() == 0
    return found


def test_jobs_are_found_by_filters(dead: str, run: Run, run_json: RunJson) -> None:
    assert [job["id"] for job in run_json("job", "list", "state:dead", *URL)["jobs"]] == [dead]
    assert len(run_json("job", "list", "task:jobs.hello", "args.who=bo,cy", *URL)["jobs"]) == 2
    assert dead in run("job", "list", "state:dead age<1h", *URL).stdout
    assert "no matching jobs" in run("job", "list", "queue:nowhere", *URL).stderr
    assert "unknown field 'colour'" in run("job", "list", "colour:red", *URL, code=2).stderr
    assert "got both" in run("job", "list", "state:dead", "--queue", "default", *URL, code=2).stderr


def test_lists_come_from_the_replica(dead: str, run_json: RunJson, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_json("top", *URL)["from_replica"] is False
    monkeypatch.setenv("HEADRACE_REPLICA_URL", "sqlite:///copy.db")
    assert run_json("top", *URL)["queues"] == []
    assert run_json("job", "list", "state:dead", *URL)["jobs"] == []
    assert run_json("job", "show", dead, *URL)["id"] == dead


def test_who_names_the_store_filters_by_all_that_is_in_it(dead: str, run_json: RunJson) -> None:
    assert run_json("job", "list", "args.token~s3c", *URL)["jobs"] == []


async def test_top_waits_for_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    seen = asyncio.Event()

    class Flaky(Admin):
        async def overview(self) -> Overview:
            if len(shown) == 1:
                raise Unavailable("the server is gone")
            return await super().overview()

    def screen_seen(*given: Any) -> Any:
        shown.append(given[4])
        if len(shown) == 3:
            seen.set()
        return screen(*given)

    monkeypatch.setattr(top, "screen", screen_seen)
    async with App("memory://") as app:
        watching = asyncio.create_task(top._watch(Flaky(app.client), 0.01))
        async with asyncio.timeout(60):
            await seen.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert shown[:3] == ["", "the server is gone", ""]


def test_a_job_is_shown_by_its_key(dead: str, run: Run, run_json: RunJson) -> None:
    found = run_json("job", "show", "--queue", "default", "--key", "bo", *URL)
    assert (found["args"], found["state"]) == ({"who": "bo"}, "completed")
    assert "expected an ID, or --queue and --key" in run("job", "show", *URL, code=2).stderr
    assert "expected an ID, or --queue and --key" in run("job", "show", "--key", "bo", *URL, code=2).stderr
    run("job", "show", "--queue", "default", "--key", "nobody", *URL, code=3)


def test_operations_from_the_terminal(dead: str, run: Run, run_json: RunJson) -> None:
    assert "confirmation needed" in run("op", "submit", "state:dead", "requeue", *URL, code=2).stderr
    found = run_json("op", "submit", "state:dead", "requeue", "--yes", *URL)
    assert (found["state"], found["met"], found["changed"]) == ("completed", 1, 1)
    assert run_json("job", "show", dead, *URL)["state"] == "available"
    waiting = run_json("op", "submit", f"id:{dead}", "cancel", "--yes", "--detach", *URL)
    assert waiting["state"] == "available"
    run("op", "run", *URL)
    assert run_json("op", "show", waiting["id"], *URL)["state"] == "completed"
    assert run_json("job", "show", dead, *URL)["state"] == "cancelled"
    assert [one["action"] for one in run_json("op", "list", *URL)["operations"]] == ["cancel", "requeue"]
    gone = run_json("op", "submit", "state:ended", "delete", "--yes", "--detach", *URL)
    assert run_json("op", "cancel", gone["id"], *URL)["state"] == "cancelled"
    actions = [one["action"] for one in run_json("op", "log", *URL)["entries"]]
    assert actions == ["cancel operation", "submit delete", "submit cancel", "submit requeue"]
    assert "submit delete" in run("op", "log", *URL).stdout
    assert run_json("op", "submit", "queue:nowhere", "delete", "--yes", *URL) == {"number": 0}
    run("op", "show", dead, *URL, code=3)


def test_every_command_that_changes_something_is_noted(dead: str, run: Run, run_json: RunJson) -> None:
    run("job", "retry", dead, *URL)
    run("job", "cancel", dead, *URL)
    run("queue", "pause", "default", "--lasts", "1h", *URL)
    run("queue", "resume", "default", *URL)
    run("queue", "limit", "default", "--running", "3", *URL)
    run("tenant", "pause", "default", "acme", *URL)
    run("tenant", "resume", "default", "acme", *URL)
    run("job", "retry", dead, *URL)
    run("queue", "purge", "mail", "--yes", *URL)
    entries = run_json("op", "log", *URL)["entries"]
    assert [one["action"] for one in reversed(entries)] == [
        "requeue", "cancel", "pause queue", "resume queue", "limit queue", "pause tenant", "resume tenant", "requeue",
        "delete waiting jobs",
    ]  # fmt: skip
    assert entries[-1]["details"] == {"ids": [dead], "jobs": 1}
    assert {"@" in one["actor"] for one in entries} == {True}


def test_what_is_done_to_schedules_tenants_and_rules_is_noted(project: Path, run: Run, run_json: RunJson) -> None:
    async def plan() -> None:
        async with App(f"sqlite:///{project}/jobs.db") as app:
            await app.schedules.put(Every("1h", NewJob(task="jobs.hello", args={"who": "ada"}), name="hourly"))

    asyncio.run(plan())
    for name in ("run", "pause", "resume"):
        run("schedule", name, "hourly", *URL)
    run("schedule", "pause", "nobody", *URL, code=3)
    run("schedule", "backfill", "hourly", "--since", "3h", "--yes", *URL)
    run("schedule", "delete", "hourly", "--yes", *URL)
    run("tenant", "limit", "default", "acme", "--running", "3", *URL)
    run("janitor", "keep", "7d", "--queue", "mail", *URL)
    run("janitor", "forget", "--queue", "mail", *URL)
    run("janitor", "run", *URL)
    run("janitor", "budget", "--bytes", "1000000000", *URL)
    run("janitor", "budget", "--off", *URL)
    run("janitor", "shrink", *URL)
    entries = [*reversed(run_json("op", "log", *URL)["entries"])]
    assert [one["action"] for one in entries] == [
        "run schedule", "pause schedule", "resume schedule", "backfill schedule", "delete schedule", "limit tenant",
        "keep", "forget", "run janitor", "set budget", "drop budget", "shrink",
    ]  # fmt: skip
    assert entries[1]["details"] == {"schedule": "hourly"}
    assert entries[3]["details"]["slots"] == 3
    assert entries[5]["details"] == {"queue": "default", "tenant": "acme", "limits": {"running": "3"}}
    assert entries[6]["details"] == {"age": "7d", "queue": "mail"}


def test_workers_are_listed(run: Run, run_json: RunJson, start: Any) -> None:
    run("enqueue", "hello", "--app", "jobs", "--arg", 'who="ada"')
    assert "no worker is alive" in run("workers", *URL).stderr
    start("worker", "jobs", "--name", "sole", "--concurrency", "3").event("worker_started")
    found: list[Any] = []
    while not found:
        found = run_json("workers", *URL)["workers"]
    assert [(one["name"], one["slots"]) for one in found] == [("sole", 3)]
    assert "0 of 3" in run("workers", *URL).stdout


COUNT = """

@app.task
async def count(job: Job[None], path: str) -> None:
    job.progress(0.4, "rows\\x1b[2J read")
    await gate.function(path)
"""


def test_how_far_a_job_has_come(
    project: Path, run: Run, run_json: RunJson, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the job, in a list and on top's screen, and only there until it has ended."""
    (project / "jobs.py").write_text((project / "jobs.py").read_text() + COUNT)
    done = project / "done"
    job = run_json("enqueue", "count", "--app", "jobs", "--arg", f'path="{done}"')["id"]
    worker = start("worker", "jobs", env={"HEADRACE_WORKER__LEASE": "2s"})
    try:
        worker.event("worker_started")
        while (seen := run_json("job", "show", job, *URL))["progress"] is None:
            assert worker.popen.poll() is None
        assert seen["progress"] == {"done": 0.4, "note": "rows\x1b[2J read"}
        assert "progress     40 %, rows\\x1b[2J read\n" in run("job", "show", job, *URL).stdout
        [line] = run("job", "list", "state:running", *URL).stdout.splitlines()[1:]
        assert line.endswith(": 40 %, rows\\x1b[2J read")
        assert f"jobs.count  {job}  40 %, rows\\x1b[2J read" in asyncio.run(_seen_on_top(monkeypatch))
    finally:
        done.touch()
    while run_json("job", "show", job, *URL)["state"] != "completed":
        assert worker.popen.poll() is None
    assert "progress" not in run("job", "show", job, *URL).stdout


async def _seen_on_top(monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``headrace top`` has on its screen."""
    seen: asyncio.Queue[Any] = asyncio.Queue()

    def noted(*given: Any) -> Any:
        shown = screen(*given)
        seen.put_nowait(shown)
        return shown

    monkeypatch.setattr(top, "screen", noted)
    async with App(URL[1]) as app:
        watching = asyncio.create_task(top._watch(Admin(app.client), 0.2))
        async with asyncio.timeout(60):
            shown = await seen.get()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    console = Console(width=120, file=(text := StringIO()))
    console.print(shown)
    return text.getvalue()


def test_settings_and_their_origins(run_json: RunJson, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_WORKER__CONCURRENCY", "7")
    (project / "headrace.toml").write_text('result_ttl = "2h"\nurl = "postgresql://ada:s3cret@db/jobs"\n')
    found = run_json("config", "show", "--origins")
    assert found["worker.concurrency"] == {"value": 7, "origin": "HEADRACE_WORKER__CONCURRENCY"}
    assert found["result_ttl"] == {"value": "2h", "origin": "headrace.toml"}
    assert found["patience"]["origin"] == "default"
    assert found["url"] == {"value": "postgresql://***@db/jobs", "origin": "headrace.toml"}
    found = run_json("config", "show", "--origins", "--app", "jobs")
    assert found["url"] == {"value": "sqlite:///jobs.db", "origin": "code"}
    assert run_json("config", "show", *URL)["worker.concurrency"] == 7
    assert run_json("config", "show", "--origins", *URL)["url"]["origin"] == "--url"


def test_a_report_has_no_secrets_and_no_names(
    dead: str, run: Run, run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_json("report", *URL)
    assert (found["store"]["kind"], found["store"]["completed"], found["store"]["failed"]) == ("sqlite", 3, 1)
    assert "msgspec" in found["versions"]
    text = run("report", *URL).stdout
    assert "jobs.hello" not in text
    assert "## store" in text
    assert "s3cret" not in run("report", "--url", "postgresql://ada:s3cret@127.0.0.1:1/x").output


def test_top_prints_once_if_nobody_watches(dead: str, run: Run, run_json: RunJson) -> None:
    assert "default" in run("top", *URL).stdout
    assert sum(queue["failed"] for queue in run_json("top", *URL)["queues"]) == 1


def test_what_top_shows() -> None:
    rates = Rates()
    rates.hear(
        Digest("web-1", 0, [Tally("mail", "send", "completed", 50)], [Happening("retrying", 0, b"", "mail\x1b[2J")]),
        5.0,
    )
    overview = Overview(
        "memory://", None, [QueueView("mail", available=3, scheduled=1, due=2), QueueView("sms", paused=True)]
    )
    found = rows(overview, rates.per_second(6.0))
    assert [row[0] for row in found] == ["mail", "sms (paused)"]
    assert found[0][1:3] == [2, 1]
    assert found[0][7] == 50
    assert rates.per_second(60.0) == {}
    console = Console(width=120, file=(shown := StringIO()))
    console.print(screen(overview, rates, 6.0))
    text = shown.getvalue()
    assert "retrying mail" in text
    assert "\x1b[2J" not in text


def test_the_dashboard_is_served(run: Run, start: Any) -> None:
    run("enqueue", "hello", "--app", "jobs", "--arg", 'who="ada"')
    server = start("dashboard", "0", *URL)
    assert "change nothing" in server.text("--writes")
    address = parse_address(server.text("http://").split("http://")[1].split(": health")[0])
    assert "<h1>Overview</h1>" in ask(address, "/").text
    assert ask(address, "/do/queue/pause", "POST", body=b"queue=default").status == 403
    server.send(signal.SIGTERM)
    assert server.ended() == 0


def test_a_store_is_served_without_a_worker(run: Run, start: Any) -> None:
    run("enqueue", "hello", "--app", "jobs", "--arg", 'who="ada"')
    server = start("serve", "0", *URL)
    line = server.text("http://")
    address = parse_address(json.loads(line)["message"].split("http://")[1].split(": health")[0])
    assert ask(address, "/api/v1/queues/default").json["available"] == 1
    assert ask(address, "/livez").status == 200
    server.send(signal.SIGTERM)
    assert server.ended() == 0
    assert "no tokens" in run("serve", "0.0.0.0:0", *URL, code=2).stderr
