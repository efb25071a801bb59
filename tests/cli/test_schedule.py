"""Schedules from the shell."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from click.shell_completion import ShellComplete

from headrace import App, Cron, Every, NewJob
from headrace.cli.__main__ import cli
from headrace.cli.schedule_output import coming, fate
from headrace.cli.times import by_clock, now, read_instant
from headrace.errors import ConfigError
from headrace.schedules.coverage import coverage
from headrace.schedules.spec import TickInfo
from tests.cli.conftest import Run
from tests.cli.test_output import use_terminal

URL = ("--url", "sqlite:///jobs.db")
RunJson = Callable[..., Any]
JOB = NewJob(task="jobs.hello", args={"who": "ada"}, queue="mail")


def put(*specs: Every | Cron, work: bool = False) -> None:
    """Into the store of the project; with ``work``, a worker plans them."""

    async def main() -> None:
        async with App(URL[1]) as app:
            for spec in specs:
                await app.schedules.put(spec)
            if work:
                await app.drain(["nobody"])

    asyncio.run(main())


@pytest.fixture(autouse=True)
def in_project(project: Path) -> None:
    """Where the store is."""


@contextmanager
def in_zone(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The person's own time zone."""
    import time

    with monkeypatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()


# -- list


def test_a_list_tells_what_comes_and_what_came(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    put(
        Cron("0 6 * * MON-FRI", JOB, name="morning", tz="Europe/Madrid", start=now() + timedelta(days=1)),
        Every("1h", JOB, name="hourly", jitter=0),
    )
    run("schedule", "run", "hourly", *URL)
    with in_zone("Asia/Kolkata", monkeypatch):
        heads, hourly, morning = run("schedule", "list", *URL).stdout.splitlines()
    assert heads.split() == ["NAME", "RULE", "ZONE", "NEXT", "HERE", "LAST", "PLANNED"]
    assert hourly.startswith("hourly   every 1h")
    assert re.search(r"due (just now|\d+s ago)", hourly)
    assert hourly.endswith("1  enabled")
    assert "0 6 * * MON-FRI  Europe/Madrid" in morning
    assert " 06:00:00 CE" in morning
    assert any(f"{here}:00, in " in morning for here in ("10:30", "09:30"))
    assert morning.endswith("0  enabled")


def test_a_list_for_programs(run_json: RunJson) -> None:
    put(Cron("@yearly", JOB, name="a", tz="Europe/Madrid"), Every("1h", JOB, name="b"))
    found = run_json("schedule", "list", *URL, "--limit", "1")
    [first] = found["schedules"]
    assert found["more"]
    assert (first["name"], first["rule"], first["tz"], first["args"]) == (
        "a",
        "@yearly",
        "Europe/Madrid",
        {"who": "ada"},
    )
    assert (first["enabled"], first["runs"], first["last"]) == (True, 0, None)
    assert datetime.fromisoformat(first["next"]) == datetime.fromisoformat(first["next_slot"])


def test_a_list_narrowed(run: Run, run_json: RunJson) -> None:
    put(Every("1h", NewJob(task="t", queue="one", tenant="acme", args={}), name="a"), Every("1h", JOB, name="b"))

    def names(*filters: str) -> list[str]:
        return [one["name"] for one in run_json("schedule", "list", *URL, *filters)["schedules"]]

    assert names() == ["a", "b"]
    assert names("--queue", "mail") == ["b"]
    assert names("--tenant", "acme") == ["a"]
    assert names("--tenant", "acme", "--queue", "mail") == []
    assert "no matching schedules" in run("schedule", "list", *URL, "--tenant", "none").stderr
    assert "these are the first 1" in run("schedule", "list", *URL, "--limit", "1").stderr


def test_an_empty_list_tells_how_to_fill_it(run: Run) -> None:
    put()
    assert "'headrace schedule add' make them" in run("schedule", "list", *URL).stderr


def test_a_list_tells_that_nobody_works(run: Run) -> None:
    put(Every("1h", JOB))
    assert "no worker runs: nothing fires until one does" in run("schedule", "list", *URL).stderr


def test_what_is_planned_ahead_has_not_run(run: Run, run_json: RunJson) -> None:
    put(Every("30s", JOB, name="beat", jitter=0), work=True)
    table = run("schedule", "list", *URL).stdout.splitlines()
    assert ("PLANNED" in table[0].upper(), " 2 " in table[1]) == (True, True)
    shown = run("schedule", "show", "beat", *URL).stdout
    [runs] = [line.split() for line in shown.splitlines() if line.startswith("runs")]
    assert runs == ["runs", "0"]
    assert "2 slots ahead" in shown


# -- show


def test_show_tells_everything(run: Run) -> None:
    start, end = datetime(2098, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
    bounds: Any = {"start": start, "end": end, "max_runs": 1_500}
    put(Cron("0 6 * * *", JOB, name="m", tz="Europe/Madrid", jitter=0.25, plan_priority=3, misfire="all", **bounds))
    shown = dict(line.split(maxsplit=1) for line in run("schedule", "show", "m", *URL).stdout.splitlines())
    assert {name: shown[name] for name in shown if name not in ("next", "made", "changed")} == {
        "name": "m",
        "rule": "0 6 * * *",
        "zone": "Europe/Madrid",
        "status": "enabled",
        "task": "jobs.hello",
        "args": '{"who": "ada"}',
        "queue": "mail",
        "runs": "0 of 1,500",
        "limits": "from 2098-01-01 01:00:00 CET  to 2099-01-01 01:00:00 CET",
        "jitter": "±25% of the interval",
        "misfire": "all slots up to 1d late",
        "overlap": "allow",
        "delivery": "exactly_once",
        "plan_priority": "3",
        "coverage": "no slot has come yet",
    }


def test_show_tells_what_became_of_slots(run: Run, run_json: RunJson) -> None:
    put(Every("1h", JOB, name="beat", jitter=0))
    run("schedule", "run", "beat", *URL)
    output = run("schedule", "show", "beat", *URL).stdout
    assert "coverage  100.0%: 1 fired, 0 missed, 0 skipped" in output
    assert "last      due " in output
    heads, row = output.split("\n\n")[1].splitlines()
    assert heads.split() == ["SLOT", "OUTCOME", "JOB", "WAITED", "RAN", "ID"]
    assert "fired    due " in row
    data = run_json("schedule", "show", "beat", *URL, "--limit", "1")
    assert (data["name"], data["coverage"], len(data["history"]), len(data["next"])) == ("beat", 1.0, 1, 5)
    assert data["history"][0]["job"] in output


def test_slots_to_come_are_planned_and_neither_fired_nor_covered(run: Run, run_json: RunJson) -> None:
    put(Every("30s", JOB, name="beat", jitter=0), work=True)
    shown = run("schedule", "show", "beat", *URL).stdout
    assert "\n\n" not in shown
    assert "coverage  no slot has come yet" in shown
    assert "planned   2 slots ahead, until 2" in shown
    data = run_json("schedule", "show", "beat", *URL)
    assert (data["planned"]["count"], data["planned"]["more"], data["coverage"], data["history"]) == (
        2,
        False,
        None,
        [],
    )


def test_pending_jobs_that_are_cancelled_are_not_made_up_for(run: Run) -> None:
    put(Every("30s", JOB, name="beat", jitter=0), work=True)
    paused = run("schedule", "pause", "beat", "--cancel-pending", *URL)
    assert "2 jobs planned already: cancelled; their slots count as fired, and backfill" in paused.stderr


def test_coverage_is_the_share_of_slots_that_were_to_fire() -> None:
    assert str(coverage([])) == "no slot has come yet"
    ticks = [tick(), tick(), tick("skipped"), tick("missed", count=4)]
    assert coverage(ticks).share == 2 / 6
    assert str(coverage(ticks)) == "33.3%: 2 fired, 4 missed, 1 skipped"
    assert str(coverage([tick(), tick(state="cancelled")])) == "50.0%: 1 fired, 0 missed, 0 skipped, 1 cancelled"
    assert str(coverage([tick("skipped")])) == "no slot should have fired, 1 skipped"


def tick(outcome: str = "fired", state: str = "", count: int = 1) -> TickInfo:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    job = UUID(int=1) if outcome == "fired" else None
    return TickInfo(
        slot=noon,
        run_at=noon,
        planned_at=noon,
        outcome=outcome,
        count=count,
        job=job,
        state=state,
        waited=None,
        ran=None,
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (tick(state="completed"), "completed 1h ago"),
        (tick(state="available"), "due 1h ago"),
        (tick(state="running"), "running, due 1h ago"),
        (tick(), "fired 1h ago"),
        (tick("skipped"), "skipped 1h ago"),
        (tick("missed", count=1_200), "missed ×1,200 1h ago"),
        (None, ""),
    ],
)
def test_what_became_of_a_slot_in_words(given: TickInfo | None, told: str) -> None:
    assert fate(given, datetime(2030, 1, 1, 13, tzinfo=UTC)) == told


# -- next


def test_next_in_both_zones(run: Run, run_json: RunJson) -> None:
    put(Cron("30 6 * * *", JOB, name="m", tz="Europe/Madrid"))
    lines = run("schedule", "next", "m", *URL, "--count", "3").stdout.splitlines()
    assert lines[0].split()[:3] == ["DUE", "UTC", "WHEN"]
    assert all(" 06:30:00 CE" in line and " in " in line for line in lines[1:])
    found = run_json("schedule", "next", "m", *URL, "--count", "3")
    assert (found["name"], found["tz"], found["status"], len(found["next"])) == ("m", "Europe/Madrid", "enabled", 3)
    one = found["next"][0]
    assert datetime.fromisoformat(one["at"]) == datetime.fromisoformat(one["local"])
    assert "T06:30:00+0" in one["local"]


def test_next_of_an_interval_is_in_utc(run: Run) -> None:
    put(Every("1h", JOB, name="h"))
    heads, first, *_ = run("schedule", "next", "h", *URL).stdout.splitlines()
    assert heads.split() == ["DUE", "WHEN"]
    assert " UTC " in first


def test_next_tells_where_the_clocks_change(run: Run) -> None:
    put(Cron("30 2 * * *", JOB, name="m", tz="Europe/Madrid", start=datetime(2098, 1, 1, tzinfo=UTC)))
    output = run("schedule", "next", "m", *URL, "--count", "365").stdout
    lines = output.splitlines()
    assert lines[0].split() == ["DUE", "UTC", "WHEN", "CLOCKS"]
    [forward] = [line for line in lines[2:] if line.endswith("go forward by 1h")]
    [back] = [line for line in lines[2:] if line.endswith("go back by 1h")]
    assert " 03:00:00 CEST" in forward
    assert " 02:30:00 CE" in back
    assert len(lines) == 366


def test_clocks_of_half_an_hour() -> None:
    lord_howe = ZoneInfo("Australia/Lord_Howe")
    days = [datetime(2030, 4, day, 12, tzinfo=lord_howe) for day in (6, 7, 8)]
    assert [one.clocks for one in coming(days, lord_howe, days[0])] == ["", "go back by 30m", ""]
    assert [one.local.hour for one in coming(days, lord_howe, days[0])] == [12, 12, 12]


def test_next_of_one_that_is_paused_or_over(run: Run) -> None:
    put(Every("1h", JOB, name="p"), Every("1h", JOB, name="few", max_runs=2))
    run("schedule", "pause", "p", *URL)
    paused = run("schedule", "next", "p", *URL)
    assert (paused.stdout, paused.stderr) == ("", "it is paused: headrace schedule resume p\n")
    few = run("schedule", "next", "few", *URL)
    assert len(few.stdout.splitlines()) == 3
    assert few.stderr == "after that, it ends\n"


# -- run, pause, resume


def test_run_prints_the_id_and_nothing_else(run: Run, run_json: RunJson) -> None:
    put(Every("1h", JOB, name="h"))
    result = run("schedule", "run", "h", *URL)
    [line] = result.stdout.splitlines()
    assert result.stderr == "queued\n"
    job = run_json("job", "show", line, *URL)
    assert (job["task"], job["args"], job["queue"]) == ("jobs.hello", {"who": "ada"}, "mail")
    assert job["headers"]["headrace-schedule"] == "h"
    assert UUID(run_json("schedule", "run", "h", *URL)["id"]) != UUID(line)


def test_pause_and_resume(run: Run, run_json: RunJson) -> None:
    put(Every("30s", JOB, name="beat", jitter=0), work=True)
    paused = run("schedule", "pause", "beat", *URL)
    assert paused.stdout == "beat  paused\n"
    assert "2 jobs planned already: still run, unless paused with --cancel-pending" in paused.stderr
    assert "paused" in run("schedule", "list", *URL).stdout
    resumed = run("schedule", "resume", "beat", *URL)
    assert resumed.stdout == "beat  resumed\n"
    assert resumed.stderr.startswith("next ")
    assert run_json("schedule", "pause", "beat", *URL, "--cancel-pending") == {
        "name": "beat", "enabled": False, "pending": 2, "cancelled": 2,
    }  # fmt: skip
    assert [job["state"] for job in run_json("job", "list", *URL)["jobs"]] == ["cancelled", "cancelled"]
    assert run_json("schedule", "resume", "beat", *URL)["enabled"]


# -- backfill


def test_backfill_previews_asks_and_fires_each_slot_once(run: Run, run_json: RunJson) -> None:
    put(Cron("0 * 1 1 *", JOB, name="h"))  # none in the minute to come
    span = ("--since", "2026-01-01T00:30", "--until", "2026-01-01T06:00", *URL)
    assert run("schedule", "backfill", "h", *span, "--dry-run").stdout == (
        "6 slots from 2026-01-01 00:30:00 UTC to 2026-01-01 06:00:00 UTC\n"
    )
    refused = run("schedule", "backfill", "h", *span, code=2)
    assert "6 slots" in refused.stderr
    assert "--yes" in refused.stderr
    assert run_json("job", "list", *URL)["jobs"] == []
    assert run("schedule", "backfill", "h", *span, "--yes").stdout == "6 slots fired\n"
    again = run_json("schedule", "backfill", "h", *span, "--yes")
    assert (again["slots"], again["fired"]) == (0, 0)
    assert len(run_json("job", "list", *URL)["jobs"]) == 6


def test_backfill_goes_by_the_clocks_of_the_schedule(run_json: RunJson) -> None:
    put(Cron("0 6 * * *", JOB, name="m", tz="Asia/Kolkata"))
    found = run_json(
        "schedule", "backfill", "m", "--since", "2026-05-01", "--until", "2026-05-03T06:00", "--dry-run", *URL
    )
    assert (found["since"], found["slots"]) == ("2026-05-01T00:00:00+05:30", 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ["Missing option '--since'"]),
        (("--since", "yesterday"), ["--since", "2030-01-31T06:00", "6h", "'yesterday'"]),
        (("--since", "1h", "--until", "soon"), ["--until", "'soon'"]),
        (("--since", "1h", "--until", "2h"), ["--until", "expected an instant after --since; 2", "UTC is before 2"]),
        (("--since", "2000-01-01"), ["at most 100,000 slots"]),
    ],
)
def test_backfills_that_cannot_be(run: Run, options: tuple[str, ...], words: list[str]) -> None:
    put(Every("1m", JOB, name="h"))
    error = run("schedule", "backfill", "h", *options, "--yes", *URL, code=2).stderr
    assert all(word in error for word in words)
    assert "Traceback" not in error
    assert "datetime" not in error


def test_instants_as_people_write_them() -> None:
    madrid = ZoneInfo("Europe/Madrid")
    noon = datetime(2030, 7, 1, 12, tzinfo=UTC)
    assert read_instant("2030-07-01", noon, madrid) == datetime(2030, 6, 30, 22, tzinfo=UTC)
    assert read_instant("2030-07-01T06:00", noon, madrid) == datetime(2030, 7, 1, 4, tzinfo=UTC)
    assert read_instant("2030-07-01 06:00Z", noon, madrid) == datetime(2030, 7, 1, 6, tzinfo=UTC)
    assert read_instant("1h30m", noon, madrid) == noon - timedelta(minutes=90)
    assert by_clock(noon, madrid) == "2030-07-01 14:00:00 CEST"
    for wrong in ("", "now", "2030-13-01", "-1h"):
        with pytest.raises(ConfigError, match="expected a time like"):
            read_instant(wrong, noon, madrid)


# -- delete


def test_delete_asks_and_takes_what_waits_with_it(run: Run, run_json: RunJson) -> None:
    put(Every("30s", JOB, name="beat", jitter=0), work=True)
    refused = run("schedule", "delete", "beat", *URL, code=2).stderr
    assert "beat (every 30s, 2 slots planned so far) will be deleted" in refused
    assert "2 waiting jobs will be cancelled" in refused
    assert len(run_json("schedule", "list", *URL)["schedules"]) == 1
    assert run("schedule", "delete", "beat", *URL, "--yes").stdout == "beat  deleted\n"
    assert run_json("schedule", "list", *URL)["schedules"] == []
    assert {job["state"] for job in run_json("job", "list", *URL)["jobs"]} == {"cancelled"}


# -- all of them


@pytest.mark.parametrize("verb", ["show", "next", "run", "pause", "resume", "backfill", "delete"])
def test_one_that_is_not_there(run: Run, verb: str) -> None:
    put(Every("1h", JOB, name="other"))
    more = ("--since", "1h") if verb == "backfill" else ()
    error = run("schedule", verb, "nothing", *more, *URL, code=3).stderr
    assert "no schedule 'nothing'" in error
    assert "run: headrace schedule list" in error


@pytest.mark.parametrize("verb", ["list", "show", "next", "run", "pause", "resume", "backfill", "delete"])
def test_a_store_that_is_not_there(run: Run, verb: str) -> None:
    arguments = {"list": (), "backfill": ("x", "--since", "1h")}.get(verb, ("x",))
    assert "there is no store" in run("schedule", verb, *arguments, "--url", "sqlite:///none.db", code=75).stderr


def test_names_are_data(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    put(Every("1h", JOB, name="\x1b[2J[red]a b"))
    assert "\\x1b[2J[red]a b" in run("schedule", "list", *URL).stdout
    assert run("schedule", "pause", "\x1b[2J[red]a b", *URL).stdout == "\\x1b[2J[red]a b  paused\n"
    assert "headrace schedule resume \\x1b[2J" in run("schedule", "next", "\x1b[2J[red]a b", *URL).stderr


def test_a_terminal_gets_a_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.cli.schedule_output import Row, print_schedules

    put(Every("1h", JOB, name="[red]h"))

    async def look() -> Row:
        async with App(URL[1]) as app:
            return Row(await app.schedules.get("[red]h"), None, None)

    row = asyncio.run(look())
    terminal = use_terminal(monkeypatch)
    print_schedules([row], now())
    assert "[red]h" in terminal.getvalue()
    assert "enabled" in terminal.getvalue()


def test_names_are_completed() -> None:
    put(*(Every("1h", JOB, name=name) for name in ("morning", "month", "night")))

    def completed(*words: str, incomplete: str) -> list[str]:
        shell = ShellComplete(cli, {}, "headrace", "_HEADRACE_COMPLETE")
        return [one.value for one in shell.get_completions(["schedule", *words], incomplete)]

    assert completed("show", *URL, incomplete="mo") == ["month", "morning"]
    assert completed("pause", *URL, incomplete="") == ["month", "morning", "night"]
    assert completed("show", "--url", "sqlite:///none.db", incomplete="mo") == []
    assert completed(incomplete="back") == ["backfill"]


def test_an_app_is_enough(run: Run, run_json: RunJson, project: Path) -> None:
    with (project / "jobs.py").open("a") as module:
        module.write("\napp.every('1h', hello.job('ada'), name='declared')\n")
    run("worker", "jobs", "--burst", "--log-level", "error")
    assert [one["name"] for one in run_json("schedule", "list", "--app", "jobs")["schedules"]] == ["declared"]
    assert json.loads(run("schedule", "run", "declared", "--app", "jobs", "--json").stdout).keys() == {"id"}
    assert "jobs" in sys.modules


# -- add


APP = ("--app", "jobs")


def test_add_by_the_clock_is_checked_against_the_app(run: Run, run_json: RunJson) -> None:
    when = ("--cron", "0 6 * * MON-FRI", "--tz", "Europe/Madrid")
    result = run("schedule", "add", "hello", *APP, *when, "--arg", 'who="ada"', "--queue", "mail", "--priority", 3)
    assert result.stdout == "jobs.hello  added\n"
    assert re.match(r"next \d{4}-\d\d-\d\d 06:00:00 CES?T, in ", result.stderr)
    assert "no worker runs: nothing fires until one does" in result.stderr
    shown = run_json("schedule", "show", "jobs.hello", *URL)
    assert {name: shown[name] for name in ("task", "args", "queue", "priority", "rule", "tz", "jitter")} == {
        "task": "jobs.hello",
        "args": {"who": "ada"},
        "queue": "mail",
        "priority": 3,
        "rule": "0 6 * * MON-FRI",
        "tz": "Europe/Madrid",
        "jitter": 0.0,
    }
    [entry] = run_json("op", "log", *URL)["entries"]
    assert (entry["action"], entry["details"]["schedule"]) == ("add schedule", "jobs.hello")


def test_add_an_interval_with_every_option(run_json: RunJson) -> None:
    options = ("--overlap", "skip", "--misfire", "all", "--grace", "5m", "--max-age", "2h", "--jitter", "0.25")
    bounds = ("--start", "2098-01-01", "--end", "2099-01-01T00:00+01:00", "--max-runs", 7)
    more = ("--name", "beat", "--tenant", "acme", "--group", "g", "--delivery", "exactly_once")
    made = run_json("schedule", "add", "far.away", *URL, "--every", "90", *options, *bounds, *more)
    assert (made["status"], made["name"], made["rule"], made["tz"]) == ("added", "beat", "every 1m30s", "")
    assert (made["overlap"], made["misfire"], made["delivery"]) == ("skip", "all", "exactly_once")
    assert (made["grace"], made["max_age"], made["jitter"], made["max_runs"]) == (300.0, 7200.0, 0.25, 7)
    assert [datetime.fromisoformat(made[name]) for name in ("start", "end")] == [
        datetime(2098, 1, 1, tzinfo=UTC),
        datetime(2098, 12, 31, 23, tzinfo=UTC),
    ]
    assert (made["task"], made["queue"], made["tenant"], made["args"]) == ("far.away", "default", "acme", {})


def test_add_takes_no_name_that_is_taken_unless_asked(run: Run, run_json: RunJson) -> None:
    run("schedule", "add", "a", *URL, "--every", "1h")
    refused = run("schedule", "add", "b", *URL, "--every", "2h", "--name", "a", code=4).stderr
    assert "there is a schedule 'a' already: every 1h, task a" in refused
    assert "--replace" in refused
    run("schedule", "pause", "a", *URL)
    replaced = run("schedule", "add", "b", *URL, "--every", "2h", "--name", "a", "--replace")
    assert replaced.stdout == "a  replaced\n"
    assert "it is paused: headrace schedule resume a" in replaced.stderr
    assert run("schedule", "add", "b", *URL, "--every", "2h", "--name", "a", "--replace").stdout == "a  unchanged\n"
    shown = run_json("schedule", "show", "a", *URL)
    assert (shown["task"], shown["rule"], shown["enabled"]) == ("b", "every 2h", False)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("hello",), 2, ["--every 30s or --cron", "got neither"]),
        (("hello", "--every", "1h", "--cron", "@daily"), 2, ["got both"]),
        (("hello", "--every", "1h", "--tz", "Europe/Madrid"), 2, ["--tz: an interval has no time zone"]),
        (("hello", "--every", "1ms", "--arg", 'who="a"'), 2, ["interval: expected at least 1s"]),
        (("hello", "--every", "soon"), 2, ["--every", "soon"]),
        (("hello", "--cron", "6 o'clock", "--arg", 'who="a"'), 2, ["6 o'clock"]),
        (
            ("hello", "--cron", "@daily", "--tz", "Madrid", "--arg", 'who="a"'),
            2,
            ["tz: expected a time zone", "Madrid"],
        ),
        (("hello", "--cron", "@daily"), 2, ["who"]),
        (("hello", "--cron", "@daily", "--arg", "who=ada"), 2, ["who: expected JSON"]),
        (("hello", "--cron", "@daily", "--arg", 'who="a"', "--start", "soon"), 2, ["--start", "2030-01-31T06:00"]),
        (("hello", "--cron", "@daily", "--arg", 'who="a"', "--overlap", "wait"), 2, ["--overlap", "queue"]),
        (
            ("hello", "--cron", "@daily", "--arg", 'who="a"', "--delivery", "at_most_once", "--misfire", "all"),
            2,
            ["misfire"],
        ),
        (("helo", "--cron", "@daily"), 3, ["the app has no task 'helo'", "jobs.hello"]),
    ],
)
def test_bad_additions_store_nothing(run: Run, arguments: tuple[str, ...], code: int, words: list[str]) -> None:
    put()
    error = run("schedule", "add", *arguments, *APP, code=code).stderr
    assert all(word in error for word in words), error
    assert run("schedule", "list", *URL).stdout == ""
    assert run("op", "log", *URL).stdout == ""


def test_what_was_added_fires(run: Run, run_json: RunJson) -> None:
    run("schedule", "add", "hello", *APP, "--every", "1h", "--arg", 'who="ada"')
    job = run("schedule", "run", "jobs.hello", *URL).stdout.strip()
    run("worker", "jobs", "--burst")
    assert run_json("job", "show", job, *APP)["result"] == "hello ada"
