"""The rules of a queue from the shell, and what they do to commands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from headrace.cli.times import now
from tests.cli.conftest import Run

RunJson = Callable[..., Any]
Shop = Callable[..., Any]
APP = ("--app", "shop")
LIMIT = ("queue", "limit", "mail", *APP)


@pytest.fixture(autouse=True)
def in_shop(shop: Shop) -> None:
    """Where the store is."""


def fields(text: str) -> dict[str, str]:
    """Names and values, which stand two blanks apart at least."""
    pairs = (line.split("  ", 1) for line in text.splitlines())
    return {name: value.strip() for name, value in pairs}


# -- the rules of a queue


def test_a_queue_without_limits_says_so(run: Run) -> None:
    assert "no job was ever in queue 'mail'; so it has no rules" in run(*LIMIT).stderr
    run("enqueue", "send", *APP)
    shown = run(*LIMIT)
    assert fields(shown.stdout) == {"queue": "mail", "groups": "1 job of a group at a time"}
    assert "queue 'mail' has no rules" in shown.stderr


def test_a_queue_without_jobs_may_have_rules_all_the_same(run: Run) -> None:
    assert "no job was ever in queue 'mail'; its rules are stored anyway" in run(*LIMIT, "--running", 5).stderr
    assert "no job was ever in queue 'mail'; its rules are stored anyway" in run(*LIMIT).stderr


def test_single_queues_are_listed_alone(run: Run, run_json: RunJson) -> None:
    run("enqueue", "send", *APP)
    run("enqueue", "send", "--queue", "other", *APP)
    listed = run_json("queue", "list", "other", "none", *APP)["queues"]
    assert [(queue["queue"], queue["due"]) for queue in listed] == [("other", 1)]
    assert "no job was ever in 'none'; 'headrace queue list' shows all" in run("queue", "list", "none", *APP).stderr


def test_tasks_that_the_app_does_not_have_are_told(run: Run) -> None:
    told = "this app has no task 'sned' (did you mean 'send'?)"
    assert f"{told}; the pause is stored" in run("queue", "pause", "mail", "--task", "sned", *APP).stderr
    assert f"{told}; tasks paused" in run("queue", "resume", "mail", "--task", "sned", *APP).stderr
    assert f"{told}; its rate is stored" in run(*LIMIT, "--task-rate", "sned=1/s").stderr
    assert "this app has no task" not in run(*LIMIT, "--task-rate", "sned=none").stderr
    assert "this app has no task" not in run("queue", "pause", "mail", "--task", "send", *APP).stderr


def test_all_rules_are_set_at_once_and_shown(run: Run) -> None:
    run("enqueue", "send", *APP)
    each = ("--tenant-running", 5, "--tenant-rate", "2/3m")
    tasks = ("--task-rate", "send=10/s", "--task-rate", "a=b=1/m")
    turns = ("--tenant-workers", 2, "--tenant-batch", 20, "--ageing", "10m", "--group-running", 3)
    expected = {
        "queue": "mail",
        "tenants": "take turns, 20 jobs per turn",
        "running": "1,500 at most, 0 now",
        "rate": "100/s, burst 20",
        "each tenant": "5 at once; 2/3m",
        "workers": "at most 2 workers have jobs of one tenant",
        "task a=b": "1/m",
        "task send": "10/s",
        "ageing": "waiting 10m counts as one step of priority",
        "groups": "3 jobs of a group at a time",
        "depth": "100,000 may wait, 1 now",
    }
    rules = ("--running", 1_500, "--rate", "100/s, burst 20", "--depth", 100_000)
    assert fields(run(*LIMIT, *rules, *each, *tasks, *turns).stdout) == expected
    assert fields(run(*LIMIT).stdout) == expected


def test_what_is_not_named_stays_and_none_takes_away(run: Run, run_json: RunJson) -> None:
    run(*LIMIT, "--running", 5, "--rate", "1/s", "--depth", 7, "--ageing", 90, "--task-rate", "send=2/3m")
    run(*LIMIT, "--running", "none", "--rate", "NONE", "--task-rate", "other=1/s", "--tenant-workers", 1)
    info = run_json(*LIMIT)
    assert info == {
        "queue": "mail",
        "running": None,
        "rate": None,
        "tenant_running": None,
        "tenant_rate": None,
        "task_rates": {"send": "2/3m", "other": "1/s"},
        "tenant_workers": 1,
        "tenant_batch": None,
        "ageing": 90.0,
        "group_running": 1,
        "depth": 7,
        "fair": True,
        "paused_tasks": {},
        "paused": False,
        "paused_until": None,
        "now": {"running": 0, "waiting": 0},
    }
    info = run_json(*LIMIT, "--task-rate", "send=none", "--depth", "none", "--ageing", "none")
    assert (info["task_rates"], info["depth"], info["ageing"]) == ({"other": "1/s"}, None, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--running", "0"), ["'--running'", "at least 1", "got 0"]),
        (("--running", "-3"), ["'--running'", "at least 1", "got '-3'"]),
        (("--tenant-running", "1.5"), ["'--tenant-running'", "got '1.5'"]),
        (("--tenant-workers", "all"), ["'--tenant-workers'", "got 'all'"]),
        (("--depth", "-1"), ["'--depth'", "at least 0"]),
        (("--depth", "99999999999"), ["'--depth'", "got 99999999999"]),
        (("--depth", "9" * 5_000), ["'--depth'", "got '999"]),
        (("--tenant-batch", "0"), ["'--tenant-batch'"]),
        (("--group-running", "0"), ["'--group-running'"]),
        (("--rate", "fast"), ["'--rate'", "'100/s'", "got 'fast'"]),
        (("--rate", "10/sec"), ["'--rate'", "'100/s'", "got '10/sec'"]),
        (("--tenant-rate", "0/s"), ["'--tenant-rate'", "'0/s'"]),
        (("--task-rate", "send"), ["'--task-rate'", "TASK=RATE", "got 'send'"]),
        (("--task-rate", "=1/s"), ["'--task-rate'", "TASK=RATE"]),
        (("--task-rate", "send=fast"), ["'--task-rate'", "'100/s'", "got 'fast'"]),
        (("--ageing", "3d"), ["'--ageing'", "between 1ms and 1d", "got '3d'"]),
        (("--ageing", "soon"), ["'--ageing'", "'30s'"]),
        (("--store", "--depth", "1"), ["--store", "no other rule"]),
    ],
)
def test_rules_that_cannot_be(run: Run, run_json: RunJson, arguments: tuple[str, ...], words: list[str]) -> None:
    error = run(*LIMIT, *arguments, code=2).stderr
    assert all(word in error for word in words), error
    assert run_json(*LIMIT)["fair"] is False


def test_options_come_from_the_environment_too(run: Run, run_json: RunJson) -> None:
    env = {"HEADRACE_CLI_QUEUE_LIMIT_STORE": "1", "HEADRACE_CLI_QUEUE_LIMIT_DEPTH": "5"}
    assert run_json("queue", "limit", *APP, env=env)["depth"] == 5
    run("tenant", "limit", "mail", "acme", *APP, env={"HEADRACE_CLI_TENANT_LIMIT_NONE": "1"})


def test_which_queue_must_be_told(run: Run) -> None:
    assert "expected a queue, or --store" in run("queue", "limit", *APP, code=2).stderr


# -- the whole store


def test_the_whole_store_has_a_depth(run: Run, run_json: RunJson) -> None:
    store = ("queue", "limit", "--store", *APP)
    assert "any number of jobs may wait in the store" in run(*store).stderr
    run("enqueue", "send", *APP)
    assert run(*store, "--depth", 2).stdout == "depth  2 may wait, 1 now\n"
    assert run_json(*store) == {"depth": 2, "now": {"running": 0, "waiting": 1}}
    assert run_json(*store, "--depth", "none")["depth"] is None
    assert "no other rule" in run(*store, "--running", 1, code=2).stderr


# -- a queue that is full


@pytest.mark.parametrize("scope", [("mail",), ("--store",)], ids=" ".join)
def test_a_full_queue_is_told_with_what_to_do(run: Run, run_json: RunJson, scope: tuple[str, ...]) -> None:
    run("enqueue", "send", *APP)
    run("queue", "limit", *scope, "--depth", 1, *APP)
    refused = run("enqueue", "send", *APP, code=75)
    assert refused.stdout == ""
    full = {"mail": "queue 'mail' is full (1 of 1 jobs wait)", "--store": "the store is full (1 of 1 jobs wait"}[
        scope[0]
    ]
    assert f"error: the job was not stored: {full}" in refused.stderr
    assert f"run: headrace queue limit {scope[0]} for the depth" in refused.stderr
    assert len(run_json("job", "list", *APP)["jobs"]) == 1


# -- pauses


@pytest.mark.parametrize("scope", [("queue", "pause", "mail"), ("tenant", "pause", "mail", "acme")], ids=" ".join)
def test_a_pause_of_no_length_is_none(run: Run, scope: tuple[str, ...]) -> None:
    error = run(*scope, "--lasts", "0", *APP, code=2).stderr
    assert f"expected more than 0s, got '0'; to end a pause: headrace {scope[0]} resume" in error


def test_a_pause_that_ends_by_itself(run: Run, run_json: RunJson) -> None:
    run("enqueue", "send", *APP)
    assert run("queue", "pause", "mail", "--lasts", 90, *APP).stdout == "mail  paused for 1m30s\n"
    [queue] = run_json("queue", "list", *APP)["queues"]
    assert queue["paused"]
    assert 80 < (datetime.fromisoformat(queue["paused_until"]) - now()).total_seconds() <= 90
    assert "paused, ends in 1m" in run("queue", "list", *APP).stdout
    assert fields(run(*LIMIT).stdout)["paused"].startswith("ends in 1m")
    assert "; paused, ends in 1m" in run("doctor", *APP).stdout
    assert run("queue", "pause", "mail", *APP).stdout == "mail  paused until it is resumed\n"
    [queue] = run_json("queue", "list", *APP)["queues"]
    assert (queue["paused"], queue["paused_until"]) == (True, None)
    assert run("queue", "resume", "mail", *APP).stdout == "mail  resumed\n"
    assert "paused" not in run("queue", "list", *APP).stdout


def test_a_pause_of_one_task(run: Run, run_json: RunJson) -> None:
    run("enqueue", "send", *APP)
    output = run("queue", "pause", "mail", "--task", "send", "--lasts", "2h", *APP).stdout
    assert output == "mail, task send  paused for 2h\n"
    assert list(run_json(*LIMIT)["paused_tasks"]) == ["send"]
    run(*LIMIT, "--task-rate", "send=1/s")
    assert fields(run(*LIMIT).stdout)["task send"].startswith("1/s; paused, ends in ")
    assert "paused" not in run("queue", "list", *APP).stdout
    assert run("queue", "resume", "mail", "--task", "send", *APP).stdout == "mail, task send  resumed\n"
    assert run_json(*LIMIT)["paused_tasks"] == {}
