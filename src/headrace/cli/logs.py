"""Logs of a worker: text for people, JSON for machines, or as the user's own configuration says."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any

from headrace.cli.output import clean, discard, note, paint, terminal
from headrace.text import without_secrets
from headrace.worker.child import LOGS
from headrace.worker.job_fields import JobFields, add_job_fields

FORMATS = ("auto", "text", "json")
LEVELS = ("debug", "info", "warning", "error")
_LEVEL_COLOURS = {"DEBUG": "dim", "INFO": "", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
_ABOUT_JOB = ("task", "job_id", "attempt", "queue")

log = logging.getLogger("headrace.worker")


def configure(format: str, level: str, stream: IO[str] | None = None) -> None:
    """Send all logs of this process to stdout, in the one format."""
    logging.basicConfig(level=logging.INFO, handlers=[_handler(format, stream)], force=True)
    _set_levels(level)
    logging.captureWarnings(True)


@contextmanager
def provisional(format: str, level: str) -> Iterator[None]:
    """Log what Headrace itself says while the user's module is imported: that may set up logging in its own way."""
    own, handler = logging.getLogger("headrace"), _handler(format)
    own.addHandler(handler)
    own.propagate, before = False, own.propagate
    own.setLevel(_Provisional(logging.getLevelName(level.upper())))
    try:
        yield
    finally:
        own.removeHandler(handler)
        own.propagate = before
        if isinstance(own.level, _Provisional):
            own.setLevel(logging.NOTSET)


def settle(format: str, level: str, given: bool = False) -> None:
    """The user's module is imported. Its configuration of logging stays if there is one, unless a format was asked for
    (``given``). Otherwise all logs go to stdout, in the one format. Child processes do the same."""
    if given or not (logging.getLogger("headrace").handlers or logging.getLogger().handlers):
        configure(format, level)
    else:
        _keep()
    os.environ[LOGS] = f"{__name__}:in_child {format} {level} {given:d}"


def in_child(format: str, level: str, given: str) -> None:
    """What ``settle`` does, in a child process."""
    settle(format, level, given == "1")


def _keep() -> None:
    """Use the user's configuration. It may have disabled every logger that was there before."""
    for name, logger in logging.getLogger().manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "headrace":
            logger.disabled = False
    add_job_fields()


def _handler(format: str, stream: IO[str] | None = None) -> _Handler:
    stream = stream or sys.stdout
    if format == "auto":
        format = "text" if terminal(stream) else "json"
    handler = _Handler(stream)
    handler.setFormatter(_Text(stream) if format == "text" else _json())
    handler.addFilter(JobFields())
    return handler


def _set_levels(level: str) -> None:
    logging.getLogger("headrace").setLevel(level.upper())
    logging.getLogger("watchfiles").setLevel(logging.WARNING)


class _Provisional(int):
    """A level that nobody has asked for but us."""


class _Handler(logging.StreamHandler[IO[str]]):
    """Stops writing when nobody reads: the jobs matter more than their log."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Report a failed write; if the reader has gone, once and briefly."""
        if not isinstance(sys.exception(), BrokenPipeError):
            super().handleError(record)
            return
        discard(self.stream)
        try:
            note("nobody reads the log any more: logging stops, the work goes on")
        except OSError:
            discard(sys.stderr)


class _Text(logging.Formatter):
    """Time, level and message on one line, and for a line of a job which job it is. A traceback follows on lines of its
    own. They are indented, so that nothing in it can pass for an entry."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream
        self._short = terminal(stream)

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone()
        when = at.strftime("%H:%M:%S") if self._short else at.isoformat(timespec="milliseconds")
        line = f"{record.levelname.lower():<7} {clean(without_secrets(record.getMessage()))}"
        whole = f"{paint(when, 'dim', self._stream)} {self._paint(line, record)}{self._about(record)}"
        return "\n".join([whole, *(self._paint(line, record) for line in self._traceback(record))])

    def _paint(self, line: str, record: logging.LogRecord) -> str:
        return paint(line, _LEVEL_COLOURS.get(record.levelname, ""), self._stream)

    def _about(self, record: logging.LogRecord) -> str:
        """The job in whose handler the line was made. The line of an event names it already."""
        if hasattr(record, "event"):
            return ""
        fields = {name: getattr(record, name) for name in (*_ABOUT_JOB, "jobs") if hasattr(record, name)}
        words = " ".join(f"{name}={clean(value)}" for name, value in fields.items())
        return f" {paint(f'[{words}]', 'dim', self._stream)}" if words else ""

    def _traceback(self, record: logging.LogRecord) -> list[str]:
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return [f"    {clean(line)}" for line in without_secrets("\n".join(parts)).splitlines()]


def _json() -> logging.Formatter:
    from pythonjsonlogger.json import JsonFormatter

    class Json(JsonFormatter):
        """One object per line; an event's fields beside the message."""

        def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
            return {
                name: without_secrets(value) if isinstance(value, str) else value for name, value in log_data.items()
            }

        def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
            return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    names = {"asctime": "time", "levelname": "level", "name": "logger"}
    return Json("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names, json_ensure_ascii=True)
