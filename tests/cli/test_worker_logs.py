"""What a worker logs: failures with tracebacks, the job beside every line, and the user's own configuration."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Process, Run

Start = Callable[..., Process]
RunJson = Callable[..., Any]

APP = """
import asyncio, logging
from headrace import App, Job, current_job, exponential

{setup}
app = App("sqlite:///jobs.db")
log = logging.getLogger("shop")


@app.task(name="asynchronous")
async def asynchronous() -> None:
    await asyncio.gather(helper("one"), helper("two"))


async def helper(what):
    log.warning("asynchronous %s", what)


@app.task(name="threaded", queue="mail")
def threaded() -> None:
    log.warning("threaded", extra={{"queue": "my own"}})


@app.task(name="hurt", retry=exponential(2, base=0, jitter=False))
def hurt(n: int) -> None:
    deep(n)


def deep(n):
    raise RuntimeError(f"the bank is closed\\nforged {{n}}")


@app.task(name="later", retry=exponential(2, base="1h", jitter=False))
async def later() -> None:
    raise ConnectionError("not yet")


@app.task(name="processed", executor="process")
def processed() -> None:
    log.warning("processed by %s", current_job().task)


@app.batch(name="letters")
async def letters(jobs: list[Job[int]]) -> None:
    log.warning("letters")
"""


@pytest.fixture
def shop_with_logs(project: Path) -> Callable[[str], None]:
    def write(setup: str = "") -> None:
        (project / "shoplogs.py").write_text(APP.format(setup=setup))

    return write


def objects(process: Process) -> list[dict[str, Any]]:
    """All lines of a worker that has ended."""
    return [json.loads(line) for line in process.lines]


def stripped(process: Process) -> list[str]:
    return [line.rstrip("\n") for line in process.lines]


def enqueue(run: Run, *tasks: str) -> list[str]:
    return [
        json.loads(run("enqueue", task, "--app", "shoplogs:app", "--json", *rest).stdout)["id"]
        for task, *rest in (task.split() for task in tasks)
    ]


def test_every_line_of_a_handler_names_its_job(start: Start, run: Run, shop_with_logs: Callable[[str], None]) -> None:
    shop_with_logs("")
    ids = enqueue(run, "asynchronous", "threaded", "processed", "letters --args 1", "letters --args 2")
    worker = start("worker", "shoplogs:app", "--burst", "--concurrency", "1")
    assert worker.ended() == 0
    lines = {line["message"]: line for line in objects(worker) if line["logger"] == "shop"}
    about = {"job_id": ids[0], "task": "asynchronous", "attempt": 0, "queue": "default"}
    assert lines["asynchronous one"].items() >= about.items()
    assert lines["asynchronous two"].items() >= about.items()
    assert lines["threaded"].items() >= {"job_id": ids[1], "task": "threaded", "queue": "my own"}.items()
    processed = lines["processed by processed"]
    assert processed.items() >= {"job_id": ids[2], "task": "processed", "level": "WARNING"}.items()
    assert lines["letters"].items() >= {"task": "letters", "queue": "default", "jobs": 2}.items()
    assert "job_id" not in lines["letters"]
    others = [line for line in objects(worker) if line["logger"] != "shop" and "event" not in line]
    assert others
    assert all("job_id" not in line for line in others), "no job runs when a worker introduces itself"


def test_failures_have_a_traceback_that_begins_in_your_code(
    start: Start, run: Run, shop_with_logs: Callable[[str], None]
) -> None:
    shop_with_logs("")
    [job, later] = enqueue(run, "hurt --arg n=1", "later")
    worker = start("worker", "shoplogs:app", "--burst")
    assert worker.ended() == 0
    [failed] = [line for line in objects(worker) if line.get("event") == "failed"]
    assert (failed["job_id"], failed["attempt"], failed["level"]) == (job, 1, "ERROR")
    assert failed["exc_info"].splitlines()[0] == "Traceback (most recent call last):"
    assert "in hurt" in failed["exc_info"].splitlines()[1]
    assert "in deep" in failed["exc_info"]
    assert "headrace" not in failed["exc_info"].replace("shoplogs", "")
    assert f"failed hurt {job} (attempt 2 failed" in failed["message"]
    retries = [line for line in objects(worker) if line.get("event") == "retrying"]
    [mine] = [line for line in retries if line["job_id"] == later]
    assert mine["again_in"] == 3_600
    assert mine["again_at"] > mine["time"]
    assert "(attempt 1 failed" in mine["message"]
    assert ") in 1h, at " in mine["message"]
    assert "ConnectionError: not yet" in mine["exc_info"]


def test_in_text_a_traceback_has_lines_of_its_own(
    start: Start, run: Run, shop_with_logs: Callable[[str], None]
) -> None:
    shop_with_logs("")
    enqueue(run, "threaded")
    [job] = enqueue(run, "hurt --arg n=1")
    worker = start("dev", "shoplogs:app", "--no-reload")
    worker.text(f" error   failed hurt {job} (attempt 2")
    worker.send(signal.SIGINT)
    assert worker.ended() == 0
    lines = stripped(worker)
    [failed] = [line for line in lines if f" error   failed hurt {job}" in line]
    assert failed.endswith(": RuntimeError: the bank is closed\\nforged 1")
    rest = lines[lines.index(failed) + 1 :]
    assert rest[0] == "    Traceback (most recent call last):"
    assert rest.index("    RuntimeError: the bank is closed") + 1 == rest.index("    forged 1")
    assert any("warning threaded [task=threaded job_id=" in line for line in lines)


OWN = [
    'logging.basicConfig(format="MINE %(levelname)s %(job_id)s %(message)s", level="INFO")',
    """
import logging.config
logging.config.dictConfig({
    "version": 1,
    "formatters": {"mine": {"format": "MINE %(levelname)s %(job_id)s %(message)s"}},
    "handlers": {"mine": {"class": "logging.StreamHandler", "formatter": "mine"}},
    "root": {"handlers": ["mine"], "level": "INFO"},
})
""",
]


@pytest.mark.parametrize("setup", OWN, ids=["basicConfig", "dictConfig that disables existing loggers"])
def test_your_own_configuration_is_kept(
    start: Start, run: Run, shop_with_logs: Callable[[str], None], setup: str
) -> None:
    defaults = (
        "\nfor handler in logging.getLogger().handlers:\n    handler.formatter._style._defaults = {'job_id': '-'}"
    )
    shop_with_logs(setup + defaults)
    ids = enqueue(run, "threaded", "processed")
    worker = start("worker", "shoplogs:app", "--burst")
    assert worker.ended() == 0
    assert f"MINE WARNING {ids[0]} threaded" in stripped(worker)
    assert f"MINE WARNING {ids[1]} processed by processed" in stripped(worker)
    assert any(line.startswith("MINE INFO - worker started") for line in worker.lines)
    assert not any(line.startswith("{") and "worker started" in line for line in worker.lines)


def test_a_format_that_was_asked_for_replaces_your_own(
    start: Start, run: Run, shop_with_logs: Callable[[str], None]
) -> None:
    shop_with_logs('logging.basicConfig(format="MINE %(message)s", level="INFO")')
    enqueue(run, "threaded", "processed")
    worker = start("worker", "shoplogs:app", "--burst", "--log-format", "json")
    assert worker.ended() == 0
    assert {line["message"] for line in objects(worker)} >= {"threaded", "processed by processed"}


def test_a_level_of_your_own_is_kept(start: Start, run: Run, shop_with_logs: Callable[[str], None]) -> None:
    shop_with_logs('logging.basicConfig(format="MINE %(message)s"); logging.getLogger("headrace").setLevel("INFO")')
    worker = start("worker", "shoplogs:app", "--burst")
    assert worker.ended() == 0
    assert any(line.startswith("MINE worker started") for line in worker.lines)
