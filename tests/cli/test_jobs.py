"""Jobs, queues and dead letters from the shell, on a SQLite file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from headrace import JobState, NewJob, connect
from headrace.seam.records import Claim, Reap, Selector, Settlement
from tests.cli.conftest import Run

RunJson = Callable[..., Any]
APP = ("--app", "jobs")
URL = ("--url", "sqlite:///jobs.db")


@pytest.fixture
def work(project: Path) -> Callable[..., None]:
    """Run all that is due, here."""

    def drain() -> None:
        from headrace.cli.loading import load_target

        app = load_target("jobs")

        async def main() -> None:
            async with app:
                await app.drain()

        asyncio.run(main())

    return drain


def insert(*jobs: NewJob) -> None:
    async def main() -> None:
        async with connect(URL[1]) as client:
            await client.insert(jobs)

    asyncio.run(main())


def fail(*reasons: str) -> None:
    """The jobs of the queue mail, one by one."""

    async def main() -> None:
        async with connect(URL[1]) as client:
            store = await client.backend()
            jobs = (await store.claim(Claim("w", ("mail",), len(reasons), 1_000_000))).jobs
            ends = zip(jobs, reasons, strict=True)
            await store.finish([Settlement(job.id, job.epoch, "w", JobState.FAILED, reason=why) for job, why in ends])

    asyncio.run(main())


def lose(spread: int) -> None:
    """Let a worker take what is due and vanish with it, and another one take it back."""

    async def main() -> None:
        async with connect(URL[1]) as client:
            backend, at = await client.backend(), client.clock.now()
            await backend.claim(Claim("gone", ("default",), 10, 1), at)
            await backend.reap(Reap(spread=spread), at + 2)

    asyncio.run(main())


# -- enqueue


def test_enqueue_prints_the_id_and_nothing_else(run: Run) -> None:
    result = run("enqueue", "hello", *APP, "--arg", 'who="ada"')
    [line] = result.stdout.splitlines()
    assert json.loads(run("job", "show", line, "--json", *APP).stdout)["args"] == {"who": "ada"}
    assert result.stderr == "queued\n"


def test_enqueue_by_name_alone(run_json: RunJson) -> None:
    options = ("--queue", "mail", "--tenant", "acme", "--priority", "-3", "--key", "k", "--delay", "1h")
    stored = run_json("enqueue", "elsewhere.send", *URL, "--args", '{"to": [1, 2]}', "--arg", "cc=null", *options)
    assert stored.keys() == {"id", "status", "state"}
    job = run_json("job", "show", stored["id"], *URL)
    assert {name: job[name] for name in ("task", "queue", "tenant", "priority", "key", "args", "state")} == {
        "task": "elsewhere.send",
        "queue": "mail",
        "tenant": "acme",
        "priority": -3,
        "key": "k",
        "args": {"to": [1, 2], "cc": None},
        "state": "available",
    }
    assert job["why"].startswith("it is scheduled, in ")


def test_a_taken_key_is_an_answer(run_json: RunJson) -> None:
    first = run_json("enqueue", "hello", *APP, "--arg", 'who="a"', "--key", "k")
    second = run_json("enqueue", "hello", *APP, "--arg", 'who="b"', "--key", "k")
    assert (second["id"], second["status"]) == (first["id"], "duplicate")


def test_a_batch_task_takes_any_payload(run: Run, run_json: RunJson) -> None:
    stored = run_json("enqueue", "letters", *APP, "--args", "5")
    assert run_json("job", "show", stored["id"], *APP)["args"] == 5
    run("enqueue", "letters", *APP, "--args", '"five"', code=2)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("helo",), 3, ["no task 'helo'", "jobs.hello"]),
        (("hello",), 2, ["missing a required argument: 'who'"]),
        (("hello", "--arg", "who=1"), 2, ["Expected `str`, got `int`", "nothing was stored"]),
        (("hello", "--arg", "who=ada"), 2, ["""--arg 'who="ada"'"""]),
        (("hello", "--arg", "who"), 2, ["expected name=json"]),
        (("hello", "--arg", 'who="a"', "--arg", "x=1"), 2, ["unknown parameter 'x'"]),
        (("hello", "--args", "[1]"), 2, ["JSON object"]),
        (("hello", "--args", "{"), 2, ["expected JSON", """--args '{"user_id": 42}'"""]),
        (("hello", "--args", '{"who": "\udcff"}'), 2, ["it is not UTF-8", "\\u escapes"]),
        (("hello", "--arg", 'who="\udcff"'), 2, ["who: expected JSON", "it is not UTF-8", "\\u escapes"]),
        (("hello", "--args", "[" * 100_000), 2, ["nested too deeply", "pass less"]),
        (("hello", "--arg", "who=\x1b[2J"), 2, ["""--arg 'who="\\x1b[2J"'"""]),
        (("hello", "--arg", 'who="a"', "--priority", "99999"), 2, ["priority"]),
        (("", "--arg", 'who="a"'), 2, ["expected a name"]),
    ],
)
def test_bad_enqueues(run: Run, arguments: tuple[str, ...], code: int, words: list[str]) -> None:
    error = run("enqueue", *arguments, *APP, code=code).stderr
    for word in words:
        assert word in error
    assert "Traceback" not in error


def test_a_waiting_job_is_replaced(run: Run, run_json: RunJson) -> None:
    first = run_json("enqueue", "hello", *APP, "--arg", 'who="a"', "--key", "debounced", "--delay", "1h")
    options = ("--key", "debounced", "--unique", "while pending", "--on-duplicate", "replace arguments")
    second = run_json("enqueue", "hello", *APP, "--arg", 'who="b"', *options)
    assert (second["id"], second["status"]) == (first["id"], "replaced")
    assert run_json("job", "show", first["id"], *APP)["args"] == {"who": "b"}
    assert "keep" in run("enqueue", "hello", *APP, "--on-duplicate", "swap", code=2).stderr


def test_waiting_in_vain(run: Run) -> None:
    error = run("enqueue", "hello", *APP, "--arg", 'who="a"', "--wait", "--timeout", "50ms", code=1).stderr
    assert "no answer in 0.05 s" in error
    assert "headrace health" in error


# -- look


def test_list_filters(run: Run, run_json: RunJson) -> None:
    insert(NewJob(task="a", queue="one", tenant="x"), NewJob(task="b", queue="one"))
    insert(NewJob(task="b", queue="two", delay="1h"))

    def tasks(*filters: str) -> list[str]:
        return [f"{job['queue']}.{job['task']}" for job in run_json("job", "list", *URL, *filters)["jobs"]]

    assert tasks() == ["two.b", "one.b", "one.a"]
    assert tasks("--queue", "one") == ["one.b", "one.a"]
    assert tasks("--task", "b") == ["two.b", "one.b"]
    assert tasks("--tenant", "x") == ["one.a"]
    assert tasks("--state", "failed", "--state", "running") == []
    assert tasks("--older-than", "1h") == []
    limited = run_json("job", "list", *URL, "--limit", "2")
    assert (len(limited["jobs"]), limited["more"]) == (2, True)
    assert "raise --limit" in run("job", "list", *URL, "--limit", "2").stderr
    run("job", "list", *URL, "--state", "odd", code=2)


def test_a_list_says_nothing_of_arguments(run_json: RunJson) -> None:
    insert(NewJob(task="a", args={"password": "hunter2"}))
    [job] = run_json("job", "list", *URL)["jobs"]
    assert not job.keys() & {"args", "result", "failures"}
    assert {
        "id",
        "queue",
        "task",
        "state",
        "tenant",
        "key",
        "priority",
        "attempt",
        "run_at",
        "enqueued_at",
    } <= job.keys()


def test_a_queue_with_a_line_end_in_its_name_can_be_looked_at_and_emptied(run: Run, run_json: RunJson) -> None:
    """No job is sent to such a queue, but some may be there."""

    async def main() -> None:
        async with connect(URL[1]) as client:
            row = replace(client.packer.pack(NewJob(task="a")), queue="mail\n")
            await (await client.backend()).insert([row])

    asyncio.run(main())
    listed = run("queue", "list", *URL).stdout
    assert "mail\\n" in listed
    assert len(listed.splitlines()) == 2
    run("queue", "pause", "mail\n", *URL)
    assert run_json("queue", "purge", "mail\n", *URL, "--yes") == {"matched": 1, "deleted": 1}
    assert "control character" in run("enqueue", "a", "--queue", "mail\n", *URL, code=2).stderr


def test_names_cannot_reach_the_terminal(run: Run) -> None:
    insert(NewJob(task="a\x1b[2Jb\nforged", queue="q\u202e", key="[red]k[/red]"))
    listed = run("job", "list", *URL).stdout
    assert "a\\x1b[2Jb\\nforged" in listed
    assert "q\\u202e" in listed
    assert "[red]k[/red]" in listed
    assert len(listed.splitlines()) == 2


def test_people_read_what_kind_of_waiting_it_is(run: Run, run_json: RunJson) -> None:
    now, later, again = (
        run_json("enqueue", task, *APP, *more)["id"]
        for task, *more in (("hello", "--arg", 'who="a"'), ("gate", "--delay", "1h", "--arg", 'path="x"'), ("late",))
    )
    run("worker", "jobs", "--burst", "--queue", "late")
    states = {line.split()[0]: line.split()[1] for line in run("job", "list", *APP).stdout.splitlines()[1:]}
    assert states == {now: "due", later: "scheduled", again: "retrying"}
    assert [
        run("job", "list", f"state:{one}", *APP).stdout.split("\n")[1].split()[0] for one in ("due", "retrying")
    ] == [
        now,
        again,
    ]
    assert "state     due\n" in run("job", "show", now, *APP).stdout
    assert {run_json("job", "show", job, *APP)["state"] for job in (now, later, again)} == {"available"}
    [queue, _] = run_json("queue", "list", *APP)["queues"]
    assert (queue["due"], queue["scheduled"]) == (1, 1)


def test_show_says_why_it_waits(run: Run, run_json: RunJson) -> None:
    stored = run_json("enqueue", "hello", *APP, "--arg", 'who="a"')
    shown = run("job", "show", stored["id"], *APP)
    assert "no worker listens to queue 'default'" in shown.stdout
    assert shown.stderr == "run: headrace worker jobs\n"
    run("queue", "pause", "default", *APP)
    shown = run("job", "show", stored["id"], *APP)
    assert "queue 'default' is paused" in shown.stdout
    assert shown.stderr == "run: headrace queue resume default\n"
    assert run_json("job", "show", stored["id"], *APP)["why_code"] == "queue_paused"
    run("job", "cancel", stored["id"], *APP)
    shown = run("job", "show", stored["id"], *APP)
    assert "why" not in shown.stdout
    assert shown.stderr == ""


def test_every_instant_has_the_same_form(run: Run, run_json: RunJson, work: Callable[..., None]) -> None:
    stored = run_json("enqueue", "boom", *APP)["id"]
    work()
    for command in ("job", "dead"):
        job = run_json(command, "show", stored, *APP)
        [failure] = job["failures"]
        enqueued, failed, ended = map(datetime.fromisoformat, (job["enqueued_at"], failure["at"], job["finished_at"]))
        assert enqueued <= failed <= ended


def test_a_list_tells_how_often_a_job_failed(run: Run, work: Callable[..., None]) -> None:
    run("enqueue", "boom", *APP)
    run("enqueue", "hello", *APP, "--arg", 'who="a"')
    work()
    head, *rows = [line.split() for line in run("job", "list", *APP).stdout.splitlines()]
    place = head.index("FAILURES")
    assert {row[1]: row[place] for row in rows} == {"failed": "1", "completed": "0"}


@pytest.mark.parametrize(
    "verb", [("job", "show"), ("job", "why"), ("job", "retry"), ("job", "cancel"), ("dead", "show")]
)
def test_ids(run: Run, verb: tuple[str, str]) -> None:
    insert(NewJob(task="a"))
    assert "expected a job id" in run(*verb, "nonsense", *URL, code=2).stderr
    error = run(*verb, uuid4(), *URL, code=3).stderr
    assert "headrace job list" in error


# -- stores that are not there, or are not stores


@pytest.mark.parametrize("command", [("job", "list"), ("queue", "list"), ("dead", "list")])
def test_looking_makes_no_store(run: Run, project: Path, command: tuple[str, str]) -> None:
    error = run(*command, "--url", "sqlite:///nowhere.db", code=75).stderr
    assert "no file nowhere.db" in error
    assert not (project / "nowhere.db").exists()


def test_not_a_database(run: Run, project: Path) -> None:
    (project / "notes.db").write_text("this is no database, but a text that is long enough to look like one " * 50)
    error = run("job", "list", "--url", "sqlite:///notes.db", code=1).stderr
    assert error.startswith("error: ")
    assert "Traceback" not in error
    assert "run: the same command with --url sqlite:///" in error
    assert "migrate" not in error


def test_no_directory(run: Run) -> None:
    error = run("enqueue", "a", "--url", "sqlite:///no/such/dir/jobs.db", code=75).stderr
    assert "headrace doctor" in error


# -- change


def test_cancel(run: Run, run_json: RunJson) -> None:
    stored = run_json("enqueue", "hello", *APP, "--arg", 'who="a"')
    assert "cancelled" in run("job", "cancel", stored["id"], *APP).stdout
    assert run_json("job", "show", stored["id"], *APP)["state"] == "cancelled"
    assert "is cancelled: nothing was changed" in run("job", "cancel", stored["id"], *APP, code=4).stderr


def test_retry(run: Run, run_json: RunJson, work: Callable[..., None]) -> None:
    stored = run_json("enqueue", "hello", *APP, "--arg", 'who="a"')
    assert "is waiting: nothing was changed" in run("job", "retry", stored["id"], *APP, code=4).stderr
    work()
    assert run_json("job", "show", stored["id"], *APP)["result"] == "hello a"
    run("job", "retry", stored["id"], *APP)
    assert run_json("job", "show", stored["id"], *APP)["state"] == "available"


def test_reschedule(run: Run, run_json: RunJson, work: Callable[..., None]) -> None:
    stored = run_json("enqueue", "hello", *APP, "--arg", 'who="a"', "--delay", "1h")
    run("job", "reschedule", stored["id"], *APP, "--delay", "1m", "--at", "2030-01-01T06:30Z", code=2)
    run("job", "reschedule", stored["id"], *APP, "--at", "soon", code=2)
    assert "rescheduled" in run("job", "reschedule", stored["id"], *APP, "--at", "2030-01-01T06:30Z").stdout
    assert run_json("job", "show", stored["id"], *APP)["run_at"].startswith("2030-01-01T06:30:00")
    work()
    assert run_json("job", "show", stored["id"], *APP)["state"] == "available"
    run("job", "reschedule", stored["id"], *APP)
    work()
    assert run_json("job", "show", stored["id"], *APP)["state"] == "completed"
    assert "is completed: nothing was changed" in run("job", "reschedule", stored["id"], *APP, code=4).stderr


def test_pause_and_resume_of_jobs(run: Run, run_json: RunJson, work: Callable[..., None]) -> None:
    stored = run_json("enqueue", "hello", *APP, "--arg", 'who="a"')
    assert f"{stored['id']}  paused" in run("job", "pause", stored["id"], *APP).stdout
    assert "stays paused" in run("job", "reschedule", stored["id"], *APP).stdout
    work()
    assert run_json("job", "show", stored["id"], *APP)["state"] == "paused"
    assert f"{stored['id']}  resumed" in run("job", "resume", stored["id"], *APP).stdout
    work()
    assert run_json("job", "show", stored["id"], *APP)["state"] == "completed"


def test_dead_letters_by_their_reason(run: Run, run_json: RunJson) -> None:
    insert(*(NewJob(task="a", queue="mail") for _ in range(3)))
    fail("poison", "boom", "poison")
    assert len(run_json("dead", "list", *URL, "--reason", "poison")["jobs"]) == 2
    assert len(run_json("job", "list", *URL, "--reason", "boom")["jobs"]) == 1
    head, *rows = run("dead", "list", *URL).stdout.splitlines()
    assert head.endswith("REASON")
    assert sorted(row.split()[-1] for row in rows) == ["boom", "poison", "poison"]
    unknown = run("dead", "list", *URL, "--reason", "posion").stderr
    assert "no job has the reason 'posion'" in unknown
    assert unknown.endswith("'boom', 'poison'\n")
    assert run_json("dead", "purge", *URL, "--reason", "boom", "--yes")["deleted"] == 1
    assert len(run_json("dead", "requeue", *URL, "--reason", "poison")["requeued"]) == 2
    assert run_json("dead", "list", *URL)["jobs"] == []


def test_what_can_be_done_is_done_and_the_rest_is_told(run: Run, run_json: RunJson) -> None:
    stored = run_json("enqueue", "hello", *APP, "--arg", 'who="a"')
    unknown = uuid4()
    result = run("job", "cancel", unknown, stored["id"], *APP, code=3)
    assert f"{stored['id']}  cancelled" in result.stdout
    assert str(unknown) in result.stderr


def test_retry_with_a_key_that_is_taken(run: Run, run_json: RunJson, work: Callable[..., None]) -> None:
    failed = run_json("enqueue", "boom", *APP, "--key", "k")
    work()
    run_json("enqueue", "boom", *APP, "--key", "k")
    assert "another job holds its key 'k'" in run("job", "retry", failed["id"], *APP, code=4).stderr
    again = run("dead", "requeue", "--all", "--yes", *APP, "--json", code=4)
    assert json.loads(again.stdout) == {"requeued": [], "refused": [failed["id"]]}


def test_pause_and_resume(run: Run, run_json: RunJson) -> None:
    insert(NewJob(task="a"))
    assert "known queues: default" in run("queue", "pause", "defualt", *URL).stderr.lower()
    run("queue", "pause", "default", *URL)
    paused = {queue["queue"]: queue["paused"] for queue in run_json("queue", "list", *URL)["queues"]}
    assert paused["default"]
    assert "paused" in run("queue", "list", *URL).stdout
    run("queue", "resume", "default", *URL)
    paused = {queue["queue"]: queue["paused"] for queue in run_json("queue", "list", *URL)["queues"]}
    assert not paused["default"]


def test_queue_list(run: Run, run_json: RunJson) -> None:
    insert(NewJob(task="a"), NewJob(task="a"), NewJob(task="a", delay="1h"))
    [queue] = run_json("queue", "list", *URL)["queues"]
    age = queue.pop("oldest_due_seconds")
    assert 0 <= age < 60
    assert queue == {
        "queue": "default",
        "paused": False,
        "paused_until": None,
        "due": 2,
        "scheduled": 1,
        "running": 0,
        "jobs_paused": 0,
        "completed": 0,
        "cancelled": 0,
        "dead": 0,
        "workers": 0,
    }
    listed = run("queue", "list", *URL).stdout.split()
    assert "PAUSED" in listed
    assert listed[-10:-2] == ["default", "2", "1", "0", "0", "0", "0", "0"]


def test_purge_counts_and_asks(run: Run, run_json: RunJson) -> None:
    insert(*(NewJob(task="a", tenant="x" if n < 3 else "y") for n in range(7)), NewJob(task="a", queue="other"))
    refused = run("queue", "purge", "default", *URL, code=2)
    assert "7 waiting jobs of queue default will be deleted" in refused.stderr
    assert "--yes" in refused.stderr
    assert run_json("queue", "purge", "default", *URL, "--yes", "--tenant", "x") == {"matched": 3, "deleted": 3}
    assert run_json("queue", "purge", "default", *URL, "--yes") == {"matched": 4, "deleted": 4}
    assert "0 waiting jobs deleted" in run("queue", "purge", "default", *URL).stdout
    assert [job["queue"] for job in run_json("job", "list", *URL)["jobs"]] == ["other"]


# -- dead letters


def test_dead_letters(run: Run, run_json: RunJson, work: Callable[..., None]) -> None:
    assert (
        "no dead letters" in run("enqueue", "hello", *APP, "--arg", 'who="a"').stderr + run("dead", "list", *APP).stderr
    )
    ids = [run_json("enqueue", "boom", *APP, "--arg", f'text="{n}"')["id"] for n in range(4)]
    work()
    listed = run_json("dead", "list", *APP)
    assert [job["id"] for job in listed["jobs"]] == ids[::-1]
    shown = run("dead", "show", ids[0], *APP).stdout
    assert "ValueError: 0" in shown
    assert "Traceback (most recent call last)" in shown
    job = run_json("dead", "show", ids[0], *APP)
    assert (job["state"], job["reason"], job["failures"][0]["type"]) == ("failed", "retries exhausted", "ValueError")

    requeued = run("dead", "requeue", "--queue", "mail", "--limit", "3", *APP)
    assert "4 dead letters match; requeueing 3, oldest first" in requeued.stderr
    assert "3 dead letters requeued" in requeued.stdout
    assert [job["id"] for job in run_json("dead", "list", *APP)["jobs"]] == ids[3:]
    assert "is not a dead letter: it is waiting" in run("dead", "show", ids[0], *APP, code=3).stderr
    run("dead", "requeue", ids[0], *APP, code=4)
    work()

    refused = run("dead", "purge", "--task", "jobs.boom", *APP, code=2)
    assert "4 dead letters will be deleted" in refused.stderr
    assert run_json("dead", "purge", "--task", "jobs.boom", "--limit", "1", "--yes", *APP)["deleted"] == 1
    assert run_json("dead", "purge", ids[3], "--yes", *APP) == {"matched": 1, "deleted": 1}
    assert run_json("dead", "purge", "--yes", *APP) == {"matched": 2, "deleted": 2}
    assert run_json("dead", "list", *APP) == {"jobs": [], "more": False}


@pytest.mark.parametrize("filters", [("--all", "--yes"), ("--task", "jobs.boom"), ("--older-than", "0s")], ids=str)
def test_requeue_takes_the_oldest_however_many_there_are(
    run: Run, run_json: RunJson, work: Callable[..., None], monkeypatch: pytest.MonkeyPatch, filters: tuple[str, ...]
) -> None:
    """Even where there are more than are counted one by one."""
    monkeypatch.setattr("headrace.cli.bulk.CAP", 3)
    ids = [run_json("enqueue", "boom", *APP)["id"] for _ in range(7)]
    work()
    result = run("dead", "requeue", *APP, *filters, "--limit", "2", "--json")
    number = "7" if "--all" in filters else "more than 3"
    assert f"{number} dead letters match; requeueing 2, oldest first" in result.stderr
    assert json.loads(result.stdout) == {"requeued": ids[:2], "refused": []}
    assert [job["id"] for job in run_json("dead", "list", *APP)["jobs"]] == ids[:1:-1]


def test_requeue_goes_on_past_those_that_must_stay(run: Run, run_json: RunJson, work: Callable[..., None]) -> None:
    keys = ("a", "b", "c", "d")
    ids = [run_json("enqueue", "boom", *APP, "--key", key)["id"] for key in keys]
    work()
    for key in ("a", "c"):
        run("enqueue", "boom", *APP, "--key", key, "--delay", "1h")
    again = run("dead", "requeue", "--queue", "mail", *APP, "--rate", "10", "--json", code=4)
    assert json.loads(again.stdout) == {"requeued": [ids[1], ids[3]], "refused": [ids[0], ids[2]]}


def test_requeue_is_paced(run_json: RunJson, work: Callable[..., None], run: Run) -> None:
    import time

    for _ in range(6):
        run("enqueue", "boom", *APP)
    work()
    began = time.monotonic()
    assert len(run_json("dead", "requeue", "--queue", "mail", *APP, "--rate", "10")["requeued"]) == 6
    assert time.monotonic() - began >= 0.5


def test_requeue_needs_to_be_told_which(run: Run, run_json: RunJson, work: Callable[..., None]) -> None:
    for _ in range(2):
        run("enqueue", "boom", *APP)
    work()
    assert "expected ids, filters such as --queue, or --all" in run("dead", "requeue", "--yes", *APP, code=2).stderr
    refused = run("dead", "requeue", "--all", *APP, code=2).stderr
    assert "2 dead letters match" in refused
    assert "confirmation needed: requeue 2 dead letters?" in refused
    assert len(run_json("dead", "list", *APP)["jobs"]) == 2
    assert "2 dead letters requeued" in run("dead", "requeue", "--all", "--yes", *APP).stdout
    assert "0 dead letters requeued" in run("dead", "requeue", "--all", *APP).stdout


def test_a_requeue_of_many_asks(run: Run, work: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.cli import dead

    monkeypatch.setattr(dead, "_UNASKED", 2)
    for _ in range(4):
        run("enqueue", "boom", *APP)
    work()
    assert "requeue 4 dead letters?" in run("dead", "requeue", "--queue", "mail", *APP, code=2).stderr
    assert "2 dead letters requeued" in run("dead", "requeue", "--queue", "mail", "--limit", "2", *APP).stdout
    assert "2 dead letters requeued" in run("dead", "requeue", "--queue", "mail", *APP).stdout


def test_one_is_told_of_as_one(run: Run, work: Callable[..., None]) -> None:
    run("enqueue", "boom", *APP)
    work()
    requeued = run("dead", "requeue", "--queue", "mail", *APP)
    assert requeued.stderr == "1 dead letter matches; requeueing 1, oldest first\n"
    assert requeued.stdout == "1 dead letter requeued\n"
    work()
    purged = run("dead", "purge", "--yes", *APP)
    assert (purged.stderr, purged.stdout) == ("1 dead letter will be deleted\n", "1 dead letter deleted\n")
    insert(NewJob(task="a"))
    purged = run("queue", "purge", "default", "--yes", *URL)
    assert purged.stderr == "1 waiting job of queue default will be deleted\n"
    assert purged.stdout == "1 waiting job deleted\n"


def test_ids_and_filters_do_not_mix(run: Run) -> None:
    insert(NewJob(task="a"))
    run("dead", "requeue", uuid4(), "--queue", "mail", *URL, code=2)
    run("dead", "requeue", uuid4(), "--all", *URL, code=2)
    run("dead", "requeue", "--all", "--queue", "mail", *URL, code=2)
    run("dead", "purge", uuid4(), "--queue", "mail", *URL, code=2)


def test_nothing_shows_a_holder(run: Run, project: Path) -> None:
    insert(NewJob(task="a"))

    async def claim() -> str:
        from headrace.seam.records import Beat, Claim

        async with connect(URL[1]) as client:
            backend = await client.backend()
            await backend.renew(Beat("5ec4e7", "worker-1", ("default",), 30_000_000, slots=1))
            [job] = (await backend.claim(Claim("5ec4e7", ("default",), 1, 30_000_000))).jobs
            assert await backend.scan(Selector())
            return job.id.hex()

    job = asyncio.run(claim())
    for command in (("job", "show", job), ("job", "list"), ("queue", "list"), ("health",), ("doctor",)):
        for form in ((), ("--json",)):
            output = run(*command, *URL, *form).output
            assert "5ec4e7" not in output
            assert "worker-1" in output or command[0] in ("queue", "job")


def test_a_job_that_lost_its_worker_says_so(run: Run, run_json: RunJson) -> None:
    ids = [run("enqueue", "hello", *APP, "--arg", 'who="ada"').stdout.strip() for _ in range(2)]
    lose(spread=3_600_000_000)
    told = [run("job", "show", job, *APP).stdout for job in ids]
    for text in told:
        assert "its worker died while running it, once" in text
    assert any("it was taken back from a worker that vanished, and is due again" in text for text in told)
    assert run_json("job", "show", ids[0], *APP)["lost"] == 1
