"""Logs of a worker: one event, one line; text for people, JSON for machines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Any

from headrace.cli.output import clean, discard, note, paint, terminal
from headrace.cli.times import length
from headrace.core.events import Event, EventKind
from headrace.text import without_secrets

FORMATS = ("auto", "text", "json")
LEVELS = ("debug", "info", "warning", "error")
_LONGEST = 500
_LEVEL_COLOURS = {"DEBUG": "dim", "INFO": "", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
_EVENT_LEVELS = {
    EventKind.QUEUED: logging.DEBUG,
    EventKind.DEDUPLICATED: logging.DEBUG,
    EventKind.STARTED: logging.DEBUG,
    EventKind.COMPLETED: logging.DEBUG,
    EventKind.SNOOZED: logging.DEBUG,
    EventKind.SWEPT: logging.DEBUG,
    EventKind.TICK_FIRED: logging.DEBUG,
    EventKind.REFUSED: logging.DEBUG,
    EventKind.ALERT: logging.DEBUG,  # logged as a warning where it is raised
    EventKind.RETRYING: logging.WARNING,
    EventKind.EXPIRED: logging.WARNING,
    EventKind.STALLED: logging.WARNING,
    EventKind.LEASE_LOST: logging.WARNING,
    EventKind.STORE_AWAY: logging.ERROR,
    EventKind.FAILED: logging.ERROR,
    EventKind.ERROR: logging.ERROR,
}

_TIMED = frozenset({EventKind.COMPLETED, EventKind.RETRYING, EventKind.FAILED})

log = logging.getLogger("headrace.worker")


def configure(format: str, level: str, stream: IO[str] | None = None) -> None:
    """Send all logs of this process to stdout, in the one format."""
    stream = stream or sys.stdout
    if format == "auto":
        format = "text" if terminal(stream) else "json"
    handler = _Handler(stream)
    handler.setFormatter(_Text(stream) if format == "text" else _json())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("headrace").setLevel(level.upper())
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    logging.captureWarnings(True)


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
    """Time, level and message, always on one line."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream
        self._short = terminal(stream)

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone()
        when = at.strftime("%H:%M:%S") if self._short else at.isoformat(timespec="milliseconds")
        text = record.getMessage()
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        line = f"{record.levelname.lower():<7} {clean(without_secrets(text))}"
        return f"{paint(when, 'dim', self._stream)} {paint(line, _LEVEL_COLOURS[record.levelname], self._stream)}"


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


def observer() -> Callable[[Event], None]:
    """An observer that logs every event of a worker. Jobs that go well are logged at DEBUG only: at thousands a second,
    that would take most of the worker's time. Arguments and results are never logged."""

    def observe(event: Event) -> None:
        level = _EVENT_LEVELS.get(event.kind, logging.INFO)
        if log.isEnabledFor(level):
            log.log(level, _sentence(event), extra=_fields(event))

    return observe


def _sentence(event: Event) -> str:
    words = [event.kind.value.replace("_", " ")]
    if event.task:
        words.append(event.task)
    if event.id:
        words.append(str(event.job_id))
    if event.kind in (EventKind.WORKER_STARTED, EventKind.WORKER_STOPPED):
        words.append(event.worker)
    if event.kind in _TIMED and event.seconds:
        words.append(f"({length(round(event.seconds * 1e6))})")
    return " ".join(words) + _because(event)


def _because(event: Event) -> str:
    text = f"{type(event.error).__name__}: {event.error}" if event.error is not None else event.detail
    if event.kind is EventKind.STALLED:
        text = f"its worker died, and the job waits again{f' ({text})' if text else ''}"
    return f": {text[:_LONGEST]}" if text else ""


def _fields(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": event.kind.value}
    if event.id:
        fields |= {"job_id": str(event.job_id), "queue": event.queue, "task": event.task, "attempt": event.attempt}
    if event.key is not None:
        fields["key"] = event.key
    if event.worker:
        fields["worker"] = event.worker
    if event.kind in _TIMED:
        fields["seconds"] = round(event.seconds, 6)
    if event.detail:
        fields["detail"] = event.detail[:_LONGEST]
    if event.error is not None:
        fields |= {"error_type": type(event.error).__name__, "error": str(event.error)[:_LONGEST]}
    return fields
