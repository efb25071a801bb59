"""The life of real worker processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from headrace.web.address import parse_address
from tests.cli.conftest import DEADLINE, Process, Run
from tests.web_client import ask

Start = Callable[..., Process]
RunJson = Callable[..., Any]
APP = ("--app", "jobs")
DEBUG = ("--log-level", "debug")


@pytest.fixture
def gate(run_json: RunJson, project: Path) -> str:
    """A job that runs until the file ``open`` is there."""
    stored = run_json("enqueue", "gate", *APP, "--arg", f'path="{project / "open"}"')
    return str(stored["id"])


def state(run_json: RunJson, job: str) -> str:
    return str(run_json("job", "show", job, *APP)["state"])


def wait_listed(run_json: RunJson) -> list[dict[str, Any]]:
    """The workers that the store knows, once there is one: the heartbeat is a thread of its own, and may come later."""
    deadline = time.monotonic() + DEADLINE
    while True:
        workers: list[dict[str, Any]] = run_json("health", *APP, "--workers", "0")["workers"]
        if workers or time.monotonic() > deadline:
            return workers


def test_burst_runs_what_is_due_and_ends(start: Start, run: Run, run_json: RunJson) -> None:
    stored = run_json("enqueue", "hello", *APP, "--arg", 'who="sappho"')
    later = run_json("enqueue", "hello", *APP, "--arg", 'who="bob"', "--delay", "1h")
    worker = start("worker", "jobs:app", "--burst", *DEBUG)
    assert worker.ended() == 0
    completed = next(line for line in map(json.loads, worker.lines) if line.get("event") == "completed")
    assert completed.keys() >= {"time", "level", "logger", "message", "job_id", "task", "queue", "attempt", "seconds"}
    assert (completed["job_id"], completed["task"]) == (stored["id"], "jobs.hello")
    assert not any("sappho" in line for line in worker.lines), "arguments and results are not for logs"
    assert state(run_json, stored["id"]) == "completed"
    assert state(run_json, later["id"]) == "available"


def test_the_first_line_says_who_works_on_what_and_where(start: Start) -> None:
    worker = start("worker", "jobs", "--burst", "--concurrency", 3, "--name", "ada", "--queue", "mail", "--queue", "x")
    assert worker.ended() == 0
    first, second, third, *_ = map(json.loads, worker.lines)
    pid = worker.popen.pid
    tasks = ["jobs.block", "jobs.boom", "jobs.gate", "jobs.hello", "jobs.late", "jobs.letters", "jobs.unsteady"]
    told = {"worker": "ada", "pid": pid, "store": "sqlite:///jobs.db", "queues": ["mail", "x"], "slots": 3}
    assert first.items() >= {"version": version("headrace"), "tasks": tasks, **told}.items()
    assert first["message"] == (
        f"worker ada starts: headrace {version('headrace')}, pid {pid}, store sqlite:///jobs.db, queues mail and x, "
        "7 tasks, 3 slots"
    )
    assert second["message"] == f"tasks: {', '.join(tasks)}"
    assert third["level"] == "WARNING"
    assert "no task of this app belongs to queue x" in third["message"]


def test_variables_that_are_no_settings_stop_no_worker(start: Start) -> None:
    """Those of a Service in Kubernetes are not worth a word; of others there is a line."""
    names = (
        "HEADRACE_SERVICE_HOST",
        "HEADRACE_PORT",
        "HEADRACE_PORT_6379_TCP_ADDR",
        "HEADRACE_DB_PORT",
        "HEADRACE_HOME",
    )
    worker = start("worker", "jobs:app", "--burst", env=dict.fromkeys(names, "10.0.0.1"))
    assert worker.ended() == 0
    told = [line for line in worker.lines if "is not a setting" in line]
    assert len(told) == 1
    assert "the environment variable HEADRACE_HOME is not a setting" in told[0]


def test_jobs_that_go_well_are_only_counted(start: Start, run: Run, run_json: RunJson) -> None:
    """A line for each of them would take more time than they do."""
    for _ in range(3):
        run("enqueue", "hello", *APP, "--arg", 'who="ada"')
    again = run_json("enqueue", "unsteady", *APP)["id"]
    failed = run_json("enqueue", "boom", *APP)["id"]
    worker = start("worker", "jobs", "--burst", "--name", "sole")
    assert worker.ended() == 0
    events = [line for line in map(json.loads, worker.lines) if "event" in line]
    assert [event["event"] for event in events if "job_id" not in event] == [
        "worker_started",
        "worker_stopped",
        "total",
    ]
    assert {event["event"] for event in events if "job_id" in event} == {"retrying", "failed"}
    assert next(event["job_id"] for event in events if event["event"] == "failed") == failed
    total = events[-1]
    completed = 3 + (state(run_json, again) == "completed")  # its second attempt may not have been due yet
    counted = {name: total[name] for name in ("worker", "completed", "failed", "retried", "running", "level")}
    assert counted == {
        "worker": "sole", "completed": completed, "failed": 1, "retried": 1, "running": 0, "level": "INFO"
    }  # fmt: skip
    assert f"{completed} completed, 1 failed, 1 retried" in total["message"]


def test_wait_prints_the_result(start: Start, run: Run) -> None:
    start("worker", "jobs.py").event("worker_started")
    result = run("enqueue", "hello", *APP, "--arg", 'who="ada"', "--wait")
    assert result.stdout == '"hello ada"\n'
    failed = run("enqueue", "boom", *APP, "--wait", code=1).stderr
    assert "ValueError: boom" in failed
    assert "headrace dead show" in failed


def test_a_signal_while_the_app_is_still_imported_ends_the_worker(start: Start, project: Path) -> None:
    """As process 1 of a container it would not even be ended by a signal that nobody listens to."""
    code = "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"
    (project / "slow.py").write_text(code)
    worker = start("worker", "slow")
    deadline = time.monotonic() + DEADLINE
    while not (project / "importing").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert "stopped on SIGTERM before it had any jobs" in "".join(worker.lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_job_finish(
    start: Start, run_json: RunJson, project: Path, gate: str, number: signal.Signals
) -> None:
    worker = start("worker", "jobs", *DEBUG)
    worker.event("started")
    worker.send(number)
    worker.text("a second signal stops the worker at once")
    (project / "open").touch()
    assert worker.event("completed")["job_id"] == gate
    assert worker.ended() == 0
    assert state(run_json, gate) == "completed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_forces(start: Start, run_json: RunJson, gate: str, number: signal.Signals) -> None:
    worker = start("worker", "jobs", *DEBUG)
    worker.event("started")
    worker.send(number)
    worker.text("a second signal stops the worker at once")
    worker.send(number)
    assert worker.ended() == 128 + number
    assert "forced to end" in worker.lines[-1]
    assert state(run_json, gate) == "running"


def test_a_handler_that_blocks_the_loop_cannot_keep_a_worker_alive(start: Start, run_json: RunJson) -> None:
    run_json("enqueue", "block", *APP)
    worker = start("worker", "jobs", *DEBUG)
    worker.event("started")
    worker.send(signal.SIGTERM)
    # The loop cannot tell that it has heard the first, so there is nothing to wait for before the second.
    deadline = time.monotonic() + DEADLINE
    while worker.popen.poll() is None and time.monotonic() < deadline:
        worker.send(signal.SIGINT)
        time.sleep(0.1)
    assert worker.ended() in (130, 143)


def test_a_job_past_the_grace_goes_back(start: Start, run_json: RunJson, gate: str) -> None:
    worker = start("worker", "jobs", *DEBUG, env={"HEADRACE_WORKER__GRACE": "50ms"})
    worker.event("started")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    job = run_json("job", "show", gate, *APP)
    assert (job["state"], job["attempt"]) == ("available", 0)


def test_options_win_over_settings(start: Start, run_json: RunJson, gate: str, project: Path) -> None:
    env = {"HEADRACE_WORKER__CONCURRENCY": "7", "HEADRACE_WORKER__NAME": "from-env"}
    worker = start("worker", "jobs", *DEBUG, "--concurrency", "3", "--queue", "default", "--queue", "x", env=env)
    worker.text("no task of this app belongs to queue x")
    worker.event("started")
    [listed] = wait_listed(run_json)
    assert (listed["worker"], listed["slots"], sorted(listed["queues"])) == ("from-env", 3, ["default", "x"])
    assert run_json("job", "show", gate, *APP)["worker"] == "from-env"
    (project / "open").touch()
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0


def test_a_store_that_cannot_be_opened(start: Start, project: Path) -> None:
    (project / "jobs.db").mkdir()
    worker = start("worker", "jobs")
    assert worker.ended() in (1, 75)
    assert any(line.startswith("error: ") for line in worker.lines)
    assert not any("Traceback" in line for line in worker.lines)


# -- a queue


@pytest.fixture
def queue(project: Path) -> tuple[str, str]:
    """``greetings:queue``, whose handler runs until the file that its payload names is there."""
    (project / "greetings.py").write_text(QUEUE)
    return ("--app", "greetings:queue")


QUEUE = """
import asyncio
from pathlib import Path
from headrace import Job, Queue

queue = Queue[str, str]("greetings", "sqlite:///jobs.db", grace="20s")

@queue.execute
async def greet(job: Job[str]) -> str:
    while not Path(job.payload).exists():
        await asyncio.sleep(0.01)
    return "hello"
"""


def test_a_queue_is_worked_like_an_app(
    start: Start, run: Run, run_json: RunJson, project: Path, queue: tuple[str, str]
) -> None:
    options = ("--args", f'"{project / "open"}"', "--key", "one")
    job = run_json("enqueue", "greetings", *queue, *options)["id"]
    worker = start("worker", "greetings:queue", *DEBUG, "--concurrency", "3", "--name", "greeter")
    worker.text("queue greetings, 3 slots")
    assert worker.event("started")["job_id"] == job
    listed = wait_listed(run_json)
    assert [(one["worker"], one["slots"], one["queues"]) for one in listed] == [("greeter", 3, ["greetings"])]
    worker.send(signal.SIGTERM)
    worker.text("running jobs may finish within 20s")
    (project / "open").touch()
    assert worker.event("completed")["job_id"] == job
    assert worker.ended() == 0
    assert run_json("job", "show", job, *queue)["result"] == "hello"
    assert [one["queue"] for one in run_json("queue", "list", *queue)["queues"]] == ["greetings"]
    assert run_json("doctor", *queue)["ok"]


def test_a_queue_in_several_processes_and_in_a_burst(
    start: Start, run_json: RunJson, project: Path, queue: tuple[str, str]
) -> None:
    (project / "open").touch()
    jobs = [run_json("enqueue", "greetings", *queue, "--args", '"open"')["id"] for _ in range(3)]
    assert start("worker", "greetings:queue", "--burst", "--processes", "2").ended() == 0
    assert {state(run_json, job) for job in jobs} == {"completed"}


def test_a_queue_has_one_name(run: Run, start: Start, queue: tuple[str, str], project: Path) -> None:
    for options in (("elsewhere",), ("greetings", "--queue", "elsewhere")):
        assert "queue 'greetings'" in run("enqueue", *options, *queue, code=3).stderr
    worker = start("worker", "greetings:queue", "--queue", "elsewhere")
    assert worker.ended() == 2
    assert "cannot claim from queue 'elsewhere'" in worker.lines[-1]
    worker = start("worker", "greetings")
    assert worker.ended() == 2
    assert "it has: queue" in worker.lines[0]


# -- logs


@pytest.mark.parametrize("together", [False, True], ids=["stdout", "both"])
def test_a_worker_whose_log_nobody_reads_works_on_quietly(run: Run, project: Path, together: bool) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "worker", "jobs", *DEBUG],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert any("worker_started" in line for line in worker.stdout)
        worker.stdout.close()
        for _ in range(2):
            assert run("enqueue", "hello", *APP, "--arg", 'who="ada"', "--wait").stdout == '"hello ada"\n'
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE) == 0
        if worker.stderr is not None:
            assert worker.stderr.read() == "nobody reads the log any more: logging stops, the work goes on\n"
    finally:
        worker.kill()
        worker.wait()
        for stream in (worker.stdout, worker.stderr):
            if stream is not None:
                stream.close()


def test_text_logs(start: Start, run_json: RunJson) -> None:
    run_json("enqueue", "unsteady", *APP)
    worker = start("worker", "jobs", "--burst", "--log-format", "text")
    assert worker.ended() == 0
    text = "".join(worker.lines)
    assert "warning retrying jobs.unsteady" in text
    assert ": ConnectionError: not yet" in text
    assert not text.startswith("{")


def test_all_commands_agree_that_a_killed_worker_is_gone(start: Start, run: Run, run_json: RunJson, gate: str) -> None:
    worker = start("worker", "jobs", "--name", "doomed", env={"HEADRACE_WORKER__LEASE": "2s"})
    deadline = time.monotonic() + DEADLINE
    while state(run_json, gate) != "running":
        assert time.monotonic() < deadline, "the job was not started in time"
        time.sleep(0.05)
    worker.kill()
    waits = run_json("enqueue", "hello", *APP, "--arg", 'who="sappho"')["id"]
    while run_json("queue", "list", *APP)["queues"][0]["workers"]:
        assert time.monotonic() < deadline, "the worker was listed for too long"
        time.sleep(0.05)
    assert run("job", "why", waits, *APP).stdout == "no worker listens to queue 'default'\n"
    report = run_json("health", *APP, code=1)
    assert (report["ok"], [one["alive"] for one in report["workers"] if one["alive"]]) == (False, [])
    assert "expected at least 1 worker alive, found 0" in report["problems"][0]


# -- several processes


def test_processes_are_restarted_and_stopped(start: Start, run_json: RunJson, project: Path) -> None:
    supervisor = start("worker", "jobs", "--processes", "2", "--name", "pool", *DEBUG)
    pids = [json.loads(supervisor.text("is process"))["pid"] for _ in range(2)]
    names = {supervisor.event("worker_started")["worker"] for _ in range(2)}
    assert names == {"pool-1", "pool-2"}
    os.kill(pids[0], signal.SIGKILL)
    supervisor.text("was killed by SIGKILL; restarting in 0.5 s")
    assert json.loads(supervisor.text("is process"))["pid"] not in pids
    assert supervisor.event("worker_started")["worker"] == "pool-1"
    supervisor.send(signal.SIGTERM)
    assert supervisor.ended() == 0
    left = run_json("health", *APP, "--workers", "0")["workers"]
    assert {worker["worker"] for worker in left} <= {"pool-1"}, "the killed one; those that were stopped signed off"


def test_a_second_signal_forces_several_processes(start: Start, gate: str, run_json: RunJson) -> None:
    supervisor = start("worker", "jobs", "--processes", "2", *DEBUG)
    supervisor.event("started")
    supervisor.send(signal.SIGINT)
    supervisor.text("a second signal stops the worker at once")
    supervisor.send(signal.SIGINT)
    assert supervisor.ended() == 130
    assert state(run_json, gate) == "running"


def test_burst_in_several_processes_ends_by_itself(start: Start, run_json: RunJson) -> None:
    stored = [run_json("enqueue", "hello", *APP, "--arg", 'who="a"')["id"] for _ in range(3)]
    assert start("worker", "jobs", "--processes", "2", "--burst").ended() == 0
    assert {state(run_json, job) for job in stored} == {"completed"}


def test_workers_do_not_outlive_their_supervisor(start: Start) -> None:
    supervisor = start("worker", "jobs", "--processes", "2")
    for _ in range(2):
        supervisor.event("worker_started")
    supervisor.send(signal.SIGKILL)
    for _ in range(2):
        supervisor.event("worker_stopped")
    assert supervisor.ended() == -signal.SIGKILL


def test_an_app_that_cannot_be_loaded_is_not_tried_again(start: Start) -> None:
    supervisor = start("worker", "nowhere", "--processes", "2", env={"HEADRACE_CLI_WORKER_PROCESSES": "2"})
    assert supervisor.ended() == 2


# -- reload


def test_reload_picks_up_a_change(start: Start, run: Run, project: Path) -> None:
    dev = start("worker", "jobs", "--reload")
    dev.event("worker_started")
    before = run("enqueue", "hello", *APP, "--arg", 'who="ada"', "--wait").stdout
    assert before == '"hello ada"\n'
    source = (project / "jobs.py").read_text()

    (project / "jobs.py").write_text("oh no(")
    dev.text("changed: jobs.py; reloading")
    dev.text("SyntaxError")
    dev.text("waiting for a change")

    (project / "jobs.py").write_text(source.replace('f"hello {who}"', 'f"goodbye {who}"'))
    dev.event("worker_started")
    after = run("enqueue", "hello", *APP, "--arg", 'who="ada"', "--wait").stdout
    assert after == '"goodbye ada"\n'
    dev.send(signal.SIGTERM)
    assert dev.ended() == 0


def test_reload_without_watchfiles(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import headrace.cli.worker

    monkeypatch.setattr(headrace.cli.worker, "find_spec", lambda name: None)
    for command in (("worker", "jobs", "--reload"), ("dev", "jobs")):
        told = run(*command, code=2)
        assert "pip install 'headrace[dev]'" in told.stderr
        assert told.stdout == ""


def test_dev_tells_in_plain_words(start: Start, run: Run, project: Path) -> None:
    (project / "mine.py").write_text(
        "from headrace import App\napp = App()\n@app.task\nasync def hi() -> str:\n    return 'hi'\n"
    )
    dev = start("dev", "mine.py")
    address = parse_address(dev.text("the dashboard: http://").split("http://")[1].strip().strip("/"))
    assert ", store sqlite:///headrace.db, queue default, 1 task, " in dev.text(" starts: headrace ")
    dev.text("tasks: mine.hi")
    dev.text("worker started")
    assert "read-only" not in ask(address, "/").text
    assert run("enqueue", "hi", "--app", "mine", "--wait").stdout == '"hi"\n'
    dev.text("started mine.hi")
    dev.text("completed mine.hi")
    dev.send(signal.SIGINT)
    assert dev.ended() == 0


# -- the whole round


def test_enqueue_work_dead_requeue(start: Start, run: Run, run_json: RunJson) -> None:
    stored = run_json("enqueue", "boom", *APP)["id"]
    assert start("worker", "jobs", "--burst").ended() == 0
    assert run_json("job", "show", stored, *APP)["state"] == "failed"
    assert [job["id"] for job in run_json("dead", "list", *APP)["jobs"]] == [stored]
    assert run_json("dead", "requeue", stored, *APP) == {"requeued": [stored], "refused": []}
    assert start("worker", "jobs", "--burst").ended() == 0
    assert len(run_json("dead", "show", stored, *APP)["failures"]) == 1
