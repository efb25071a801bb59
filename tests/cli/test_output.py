"""Printing: escapes, tables, and who is asked."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from headrace import Event, EventKind
from headrace.cli import logs, output
from headrace.cli.problems import Problem
from headrace.cli.worker_summary import Summary
from tests.cli.conftest import Run


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
    logs.observer()(event)
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
def test_a_traceback_is_on_its_line(format: str) -> None:
    stream = io.StringIO()
    logs.configure(format, "info", stream)
    try:
        raise ValueError("postgres://me:hunter2@db")
    except ValueError:
        logging.getLogger("mine").exception("oh")
    [line] = stream.getvalue().splitlines()
    assert "ValueError" in line
    assert "hunter2" not in line


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
    observe = logs.observer()
    for kind in EventKind:
        observe(Event(kind, uuid4().bytes))
    told = {line["event"] for line in map(json.loads, stream.getvalue().splitlines())}
    quiet = {"queued", "deduplicated", "refused", "started", "completed", "snoozed", "swept", "alert", "tick_fired"}
    assert told == {kind.value for kind in EventKind} - quiet


@pytest.mark.usefixtures("bare_logging")
def test_a_job_that_stalled_says_what_happened() -> None:
    stream, job = io.StringIO(), uuid4()
    logs.configure("text", "info", stream)
    logs.observer()(Event(EventKind.STALLED, job.bytes, task="jobs.hello"))
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
        names = ("event", "worker", "completed", "failed", "retried", "snoozed", "cancelled", "lost", "running")
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
    summary = Summary(every=0.01)
    a, b, c = b"a", b"b", b"c"
    async with summary.logged():
        summary.observe(Event(EventKind.WORKER_STARTED, worker="w"))
        for job in (a, b, c):
            summary.observe(Event(EventKind.STARTED, job))
        summary.observe(Event(EventKind.COMPLETED, a))
        first = await told.next()
        assert first.pop("text").startswith("w in the last ")
        assert first == {"event": "summary", "worker": "w", "completed": 1, "running": 2}
        summary.observe(Event(EventKind.RETRYING, b))
        summary.observe(Event(EventKind.FAILED, c))
        second = await told.next()
        assert second.pop("text").endswith(": 0 completed, 1 failed, 1 retried")
        assert second == {"event": "summary", "worker": "w", "failed": 1, "retried": 1}
    total = await told.next()
    assert total.pop("text").startswith("w in total, over ")
    assert total == {"event": "total", "worker": "w", "completed": 1, "failed": 1, "retried": 1}
    assert told.empty()


async def test_nothing_is_told_of_a_while_in_which_nothing_happened(told: Told) -> None:
    summary = Summary(every=0.001)
    async with summary.logged():
        summary.observe(Event(EventKind.WORKER_STARTED, worker="w"))
        summary.observe(Event(EventKind.STARTED, b"a"))
        await told.next()
        # Nothing can be waited for: there is to be nothing. A few turns of the summary's own are enough to see.
        await asyncio.sleep(0.02)
        assert told.empty()


@pytest.mark.parametrize(
    "kind", [EventKind.SNOOZED, EventKind.CANCELLED, EventKind.RELEASED, EventKind.LEASE_LOST], ids=str
)
async def test_however_a_run_ends_it_runs_no_longer(told: Told, kind: EventKind) -> None:
    summary = Summary()
    async with summary.logged():
        for event in (EventKind.WORKER_STARTED, EventKind.STARTED, kind):
            summary.observe(Event(event, b"a", worker="w"))
    assert "running" not in await told.next()


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
