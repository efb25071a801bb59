"""Why a job is not running, from the shell: the sentence, and the command that does something about it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any
from uuid import UUID

import click
import pytest

from headrace import App, JobInfo, JobState, Why, WhyCode
from headrace.cli.__main__ import cli
from headrace.cli.job_output import remedy
from headrace.seam.records import Beat, Claim
from tests.cli.conftest import Run

RunJson = Callable[..., Any]
Shop = Callable[..., Any]
APP = ("--app", "shop")
LEASE = 30_000_000


@pytest.fixture(autouse=True)
def in_shop(shop: Shop) -> None:
    """Where the store is."""


def enqueue(run: Run, *options: object) -> str:
    return run("enqueue", "send", *options, *APP).stdout.strip()


async def claim(app: App) -> None:
    """A worker takes one job, and has room for more."""
    backend = await app.client.backend()
    await backend.renew(Beat("h", "worker-1", ("mail",), LEASE, slots=2, busy=1))
    await backend.claim(Claim("h", ("mail",), 1, LEASE))


def test_one_sentence_and_what_to_do(run: Run) -> None:
    job = enqueue(run)
    told = run("job", "why", job, *APP)
    assert told.stdout == "no worker listens to queue 'mail'\n"
    assert told.stderr.endswith("run: headrace worker shop\n")


def test_a_queue_that_no_worker_of_the_app_claims_from_is_named(run: Run) -> None:
    told = run("job", "why", enqueue(run, "--queue", "else where"), *APP)
    assert told.stderr.endswith("run: headrace worker shop --queue 'else where'\n")


def test_the_same_for_programs(run_json: RunJson, run: Run) -> None:
    job = enqueue(run, "--delay", "1h")
    why = run_json("job", "why", job, *APP)
    assert why["sentence"].startswith("it is scheduled, in ")
    assert why == {"id": job, "code": "scheduled", "sentence": why["sentence"]}


@pytest.mark.parametrize(
    ("pause", "sentence", "resume"),
    [
        (("queue", "pause", "mail"), "queue 'mail' is paused", "headrace queue resume mail"),
        (
            ("queue", "pause", "mail", "--task", "send"),
            "task 'send' is paused in queue 'mail'",
            "headrace queue resume mail --task send",
        ),
        (
            ("tenant", "pause", "mail", "acme & sons"),
            "tenant 'acme & sons' is paused in queue 'mail'",
            "headrace tenant resume mail 'acme & sons'",
        ),
    ],
)
def test_what_is_paused_is_resumed_by_the_command_that_is_told(
    run: Run, pause: tuple[str, ...], sentence: str, resume: str
) -> None:
    job = enqueue(run, "--tenant", "acme & sons")
    run(*pause, *APP)
    told = run("job", "why", job, *APP)
    assert told.stdout == f"{sentence}\n"
    assert told.stderr.endswith(f"run: {resume}\n")
    run(*shlex.split(resume)[1:], *APP)
    assert run("job", "why", job, *APP).stdout == "no worker listens to queue 'mail'\n"


def test_a_limit_is_shown_by_the_command_that_is_told(run: Run, shop: Shop) -> None:
    _, job = enqueue(run, "--tenant", "acme"), enqueue(run, "--tenant", "acme")
    run("queue", "limit", "mail", "--tenant-running", 1, *APP)
    shop(claim)
    told = run("job", "why", job, *APP)
    assert told.stdout == "tenant 'acme' is at its limit of running jobs: 1\n"
    assert told.stderr.endswith("run: headrace tenant list mail\n")
    run("queue", "limit", "mail", "--running", 1, *APP)
    assert run("job", "why", job, *APP).stderr.endswith("run: headrace queue limit mail\n")


def test_a_job_that_waits_for_its_group(run: Run) -> None:
    first, second = enqueue(run, "--group", "g"), enqueue(run, "--group", "g")
    assert run("job", "why", second, *APP).stdout == f"in its group 'g' it is the turn of {first}\n"
    shown = run("job", "show", second, *APP).stdout
    assert f"in its group 'g' it is the turn of {first}" in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("group")] == [["group", "g"]]


def test_a_paused_job_names_the_command_that_resumes_it(run: Run) -> None:
    job = enqueue(run)
    run("job", "pause", job, *APP)
    answer = run("job", "why", job, *APP)
    assert answer.stdout == "the job itself is paused\n"
    assert answer.stderr.endswith(f"run: headrace job resume {job}\n")


def test_one_that_runs_and_one_that_has_ended(run: Run, shop: Shop) -> None:
    job = enqueue(run)
    shop(claim)
    assert run("job", "why", job, *APP).stdout == "it is running on worker-1\n"
    other = enqueue(run)
    run("job", "cancel", other, *APP)
    assert run("job", "why", other, *APP).stdout == "it has ended: cancelled, cancelled by an operator\n"


def test_a_reason_that_says_no_more_than_the_state_is_left_out(run: Run, shop: Shop) -> None:
    job = enqueue(run)
    shop(lambda app: app.cancel(UUID(job)))
    assert run("job", "why", job, *APP).stdout == "it has ended: cancelled\n"
    [state] = [line for line in run("job", "show", job, *APP).stdout.splitlines() if line.startswith("state")]
    assert state.split() == ["state", "cancelled"]


def test_an_unknown_job_is_an_error_as_it_is_for_show(run: Run) -> None:
    for verb in ("show", "why"):
        error = run("job", verb, UUID(int=7), *APP, code=3).stderr
        assert "headrace job list" in error


@pytest.mark.parametrize("code", WhyCode)
def test_a_command_that_is_told_is_one_that_there_is(code: WhyCode) -> None:
    job = JobInfo(UUID(int=1), "my queue", "t", JobState.AVAILABLE, tenant="")
    words = shlex.split(remedy(job, Why(code, "because")))
    command: click.Command = cli
    for word in words[1:3]:
        if isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            assert found is not None
            command = found
    assert words == [] or not isinstance(command, click.Group)
