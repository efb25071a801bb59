"""Printing: escapes, tables, and who is asked."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace import Event, EventKind
from headrace.cli import logs, output
from headrace.cli.problems import Problem
from headrace.cli.worker_summary import Summary
from headrace.core.clock import ManualClock
from headrace.core.event_log import log_event
from headrace.core.meter import Meter
from headrace.seam.records import Leased
from tests.cli.conftest import Run

LEASED = Leased(b"x" * 16, "q", "t", {}, 1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stdout and stderr on a terminal; not a fixture, as pytest sets the streams anew for the test itself."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    return stream


def test_a_table_off_a_terminal_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("id", "jobs"), [("a", 1), ("bcd", 100)])
    assert capsys.readouterr().out == "ID   JOBS\na       1\nbcd   100\n"


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    output.print_table(("id", "jobs"), [("[red]a\x1b[2J", 1)])
    assert "[red]a\\x1b[2J" in terminal.getvalue()


def test_a_table_on_a_narrow_terminal_breaks_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    columns = ("slot", "outcome", "job", "waited", "ran", "id")
    job = "019a8e8f-1c1e-7a40-9e52-0f6d2f2c7a11"
    output.print_table(columns, [("2030-01-01 12:00:00 CET", "fired", "completed", "12ms", "1h30m", job)])
    heads, *lines = terminal.getvalue().splitlines()
    assert all(name in heads for name in columns)
    assert [line.split() for line in lines] == [
        ["2030-01-01", "fired", "completed", "12ms", "1h30m", job], ["12:00:00", "CET"],
    ]  # fmt: skip
    monkeypatch.setenv("COLUMNS", "40")
    output.print_table(columns, [("2030-01-01 12:00:00 CET", "fired", "completed", "12ms", "1h30m", job)])
    assert len(terminal.getvalue().splitlines()) > len(lines) + 1, "it is cut where it must be"


@pytest.mark.parametrize("colours", [True, False])
def test_colours(monkeypatch: pytest.MonkeyPatch, colours: bool) -> None:
    if not colours:
        monkeypatch.setenv("NO_COLOR", "1")
    terminal = use_terminal(monkeypatch)
    output.print_level("fail", "it is broken", "mend it")
    Problem(1, "oh").show()
    assert ("\x1b[31m" in terminal.getvalue()) is colours


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("counting", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with output.progress("counting", 10) as advance:
        advance(5)
    assert "counting" in terminal.getvalue()


def test_a_person_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, agreed in (("y\n", True), ("n\n", False)):
        stdin = Terminal(answer)
        monkeypatch.setattr(sys, "stdin", stdin)
        if agreed:
            output.confirm("sure?", yes=False)
        else:
            with pytest.raises(Problem, match="nothing was changed"):
                output.confirm("sure?", yes=False)


# -- logs


@pytest.fixture
def bare_logging() -> Iterator[None]:
    """No handlers but those that are set up."""
    logging.getLogger().handlers.clear()
    yield
    logging.captureWarnings(False)


EVIL = "a\r\n\x1b[31m\u2028forged"


@pytest.mark.usefixtures("bare_logging")
@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("kind", list(EventKind))
def test_one_event_is_one_line(kind: EventKind, format: str) -> None:
    stream = io.StringIO()
    logs.configure(format, "debug", stream)
    event = Event(
        kind, uuid4().bytes, EVIL, EVIL, EVIL, 1, EVIL, 1.5, "the result", ValueError(EVIL + "x" * 9_999), EVIL
    )  # fmt: skip
    log_event(event)
    [line] = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert "the result" not in line
    assert len(line) < 5_000
    if format == "json":
        data = json.loads(line)
        assert data["event"] == kind.value
        assert (data["queue"], data["key"], data["job_id"]) == (EVIL, EVIL, str(event.job_id))


@pytest.mark.usefixtures("bare_logging")
@pytest.mark.parametrize("format", ["text", "json"])
def test_a_traceback_is_on_lines_of_its_own_or_in_its_object(format: str) -> None:
    stream = io.StringIO()
    logs.configure(format, "info", stream)
    try:
        raise ValueError(f"postgres://me:hunter2@db {EVIL}")
    except ValueError:
        logging.getLogger("mine").exception("oh")
    first, *rest = stream.getvalue().splitlines()
    assert "hunter2" not in stream.getvalue()
    if format == "json":
        assert not rest
        assert "ValueError" in json.loads(first)["exc_info"]
    else:
        assert first.endswith("error   oh")
        assert rest[0] == "    Traceback (most recent call last):"
        assert all(line.startswith("    ") and line.isprintable() for line in rest), "nothing passes for an entry"
        assert any("ValueError: postgres://***@db" in line for line in rest)


@pytest.mark.usefixtures("bare_logging")
@pytest.mark.parametrize("format", ["text", "json"])
def test_an_error_that_is_no_valid_text_is_logged_all_the_same(format: str, tmp_path: Path) -> None:
    try:
        try:
            raise ValueError("lone \ud800")
        except ValueError as cause:
            raise KeyError("because of it") from cause
    except KeyError as error:
        event = Event(EventKind.FAILED, uuid4().bytes, task="jobs.hello", error=error)
    with (tmp_path / "log").open("w", encoding="utf-8") as stream:
        logs.configure(format, "info", stream)
        log_event(event)
        log_event(Event(EventKind.FAILED, uuid4().bytes, task="jobs.other", error=ValueError("lone \ud800")))
    first, second = (tmp_path / "log").read_text().splitlines()
    assert "because of it" in first
    assert "d800" in second


@pytest.mark.usefixtures("bare_logging")
def test_auto_is_text_on_a_terminal_only() -> None:
    for stream, text in ((Terminal(), True), (io.StringIO(), False)):
        logs.configure("auto", "info", stream)
        logging.getLogger("headrace.worker").info("hello")
        assert stream.getvalue().startswith("{") is not text


@pytest.mark.usefixtures("bare_logging")
def test_the_usual_level_tells_of_trouble_only() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream)
    for kind in EventKind:
        log_event(Event(kind, uuid4().bytes))
    told = {line["event"] for line in map(json.loads, stream.getvalue().splitlines())}
    quiet = {
        "queued",
        "deduplicated",
        "refused",
        "started",
        "completed",
        "snoozed",
        "paused",
        "swept",
        "alert",
        "tick_fired",
    }
    assert told == {kind.value for kind in EventKind} - quiet


@pytest.mark.usefixtures("bare_logging")
def test_a_job_that_stalled_says_what_happened() -> None:
    stream, job = io.StringIO(), uuid4()
    logs.configure("text", "info", stream)
    log_event(Event(EventKind.STALLED, job.bytes, task="jobs.hello"))
    assert f"stalled jobs.hello {job}: its worker died, and the job waits again\n" in stream.getvalue()


# -- summaries


class Told(logging.Handler):
    """The records of a worker's log, as they come."""

    def __init__(self) -> None:
        super().__init__()
        self._records: asyncio.Queue[logging.LogRecord] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self._records.put_nowait(record)

    async def next(self) -> dict[str, Any]:
        """What the next one tells: its fields that are not nought, and its text."""
        record = await asyncio.wait_for(self._records.get(), 60)
        names = (
            "event",
            "worker",
            "completed",
            "failed",
            "retried",
            "snoozed",
            "paused",
            "cancelled",
            "lost",
            "running",
        )
        fields = {name: getattr(record, name) for name in names}
        return {name: value for name, value in fields.items() if value} | {"text": record.getMessage()}

    def empty(self) -> bool:
        return self._records.empty()


@pytest.fixture
def told() -> Iterator[Told]:
    log, handler = logging.getLogger("headrace.worker"), Told()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)


async def test_a_summary_tells_what_is_new_and_at_the_end_all(told: Told) -> None:
    meter, busy = Meter(ManualClock()), [2]
    summary = Summary(meter, lambda: busy[0], every=0.01)
    async with summary.logged():
        summary.observe(Event(EventKind.WORKER_STARTED, worker="w"))
        meter.completed(LEASED, 0.0)
        first = await told.next()
        assert first.pop("text").startswith("w in the last ")
        assert first == {"event": "summary", "worker": "w", "completed": 1, "running": 2}
        busy[0] = 0
        summary.observe(Event(EventKind.RETRYING, b"b"))
        summary.observe(Event(EventKind.FAILED, b"c"))
        second = await told.next()
        assert second.pop("text").endswith(": 0 completed, 1 failed, 1 retried")
        assert second == {"event": "summary", "worker": "w", "failed": 1, "retried": 1}
    total = await told.next()
    assert total.pop("text").startswith("w in total, over ")
    assert total == {"event": "total", "worker": "w", "completed": 1, "failed": 1, "retried": 1}
    assert told.empty()


async def test_nothing_is_told_of_a_while_in_which_nothing_happened(told: Told) -> None:
    summary = Summary(Meter(ManualClock()), lambda: 1, every=0.001)
    async with summary.logged():
        summary.observe(Event(EventKind.WORKER_STARTED, worker="w"))
        summary.observe(Event(EventKind.RETRYING, b"a"))
        await told.next()
        # Nothing can be waited for: there is to be nothing. A few turns of the summary's own are enough to see.
        await asyncio.sleep(0.02)
        assert told.empty()


async def test_a_summary_counts_what_came_after_it_began(told: Told) -> None:
    meter = Meter(ManualClock())
    meter.completed(LEASED, 0.0)
    summary = Summary(meter, lambda: 0, every=0.001)
    async with summary.logged():
        summary.observe(Event(EventKind.WORKER_STARTED, worker="w"))
        meter.completed(LEASED, 0.0)
        assert (await told.next())["completed"] == 1
    assert (await told.next())["completed"] == 1


def test_nothing_turns_the_direction_of_what_follows() -> None:
    for mark in "\u200e\u200f\u061c\u202e\u2067":
        assert output.clean(f"a{mark}b") == f"a\\u{ord(mark):04x}b"


@pytest.mark.parametrize(
    "arguments", [("job", "\x1b[2Jlist"), ("--\x1b]0;x\x07",), ("job", "list", "--limit", "\x1b[2J")]
)
def test_usage_errors_are_clean_too(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, code=2)
    assert "\x1b" not in result.output
    assert "\\x1b" in result.output
