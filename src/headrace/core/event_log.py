"""Events in the log: one sentence each, its fields beside it, and the traceback of what went wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from headrace.core.clock import SystemClock
from headrace.core.durations import spell, spell_roughly
from headrace.core.events import Event, EventKind
from headrace.seam.instants import to_datetime
from headrace.text import one_line

_LONGEST = 500
_LEVELS = {
    EventKind.QUEUED: logging.DEBUG,
    EventKind.DEDUPLICATED: logging.DEBUG,
    EventKind.STARTED: logging.DEBUG,
    EventKind.COMPLETED: logging.DEBUG,
    EventKind.SNOOZED: logging.DEBUG,
    EventKind.PAUSED: logging.DEBUG,
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
_WITH_TRACEBACK = frozenset({EventKind.RETRYING, EventKind.FAILED, EventKind.ERROR})

log = logging.getLogger("headrace.worker")


def log_event(event: Event) -> None:
    """Log what happened. Jobs that go well are logged at DEBUG only: at thousands a second, that would take most of the
    worker's time. Arguments and results are never logged."""
    level = _LEVELS.get(event.kind, logging.INFO)
    if log.isEnabledFor(level):
        at = to_datetime(SystemClock().now() + round(event.again_in * 1e6))
        log.log(level, "%s", _sentence(event, at), extra=_fields(event, at), exc_info=_traceback(event))


def _sentence(event: Event, at: datetime) -> str:
    words = [event.kind.value.replace("_", " ")]
    if event.task:
        words.append(event.task)
    if event.id:
        words.append(str(event.job_id))
    if event.kind in (EventKind.WORKER_STARTED, EventKind.WORKER_STOPPED):
        words.append(event.worker)
    if ran := _ran(event):
        words.append(f"({ran})")
    if event.kind is EventKind.RETRYING:
        when = f"{at.astimezone():%H:%M:%S}" if event.again_in < 43_200 else f"{at.astimezone():%Y-%m-%d %H:%M}"
        words.append(f"in {_length(event.again_in)}, at {when}")
    return one_line(" ".join(words) + _because(event))


def _ran(event: Event) -> str:
    """How long it took; of an attempt that failed, which one it was too. The job of a dead worker has neither."""
    took = _length(event.seconds) if event.kind in _TIMED and event.seconds else ""
    if event.kind is EventKind.RETRYING or (event.kind is EventKind.FAILED and (took or event.error is not None)):
        return f"attempt {event.attempt + 1} failed{took and f' after {took}'}"
    return took


def _length(seconds: float) -> str:
    length = round(seconds * 1e6)
    return spell(length) if length < 1_000 else spell_roughly(length)


def _because(event: Event) -> str:
    text = event.detail if event.error is None else f"{type(event.error).__name__}: {_text(event.error)}"
    if event.kind is EventKind.ERROR and event.error is not None and event.detail:
        text = f"{event.detail}: {text}"
    if event.kind is EventKind.STALLED:
        text = f"its worker died, and the job waits again{f' ({text})' if text else ''}"
    return f": {str(text)[:_LONGEST]}" if text else ""


def _text(error: BaseException) -> str:
    """What the error says. An error that raises when it is asked must not end the slot that logs it."""
    try:
        return str(error)
    except BaseException:
        return f"<{type(error).__name__} that cannot be shown>"


def _fields(event: Event, at: datetime) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": event.kind.value}
    if event.id:
        fields |= {"job_id": str(event.job_id), "queue": event.queue, "task": event.task, "attempt": event.attempt}
    if event.key is not None:
        fields["key"] = event.key
    if event.worker:
        fields["worker"] = event.worker
    if event.kind in _TIMED:
        fields["seconds"] = round(event.seconds, 6)
    if event.kind is EventKind.RETRYING:
        again = at.astimezone(UTC).isoformat(timespec="milliseconds")
        fields |= {"again_in": round(event.again_in, 6), "again_at": again}
    if event.detail:
        fields["detail"] = str(event.detail)[:_LONGEST]
    if event.error is not None:
        fields |= {"error_type": type(event.error).__name__, "error": _writable(_text(event.error)[:_LONGEST])}
    return fields


def _traceback(event: Event) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    """The exception, as ``logging`` takes it, from the first frame of the user's code on. None if there is no more to
    tell than the sentence does, or if handlers could not write it."""
    error = event.error
    if event.kind not in _WITH_TRACEBACK or error is None:
        return None
    if error.__traceback__ is None and error.__cause__ is None and error.__context__ is None:
        return None
    if not all(_can_be_written(one) for one in _told_with(error)):
        return None
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").startswith("headrace."):
        frame = frame.tb_next
    return type(error), error, frame


def _told_with(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that its traceback tells of too."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def _can_be_written(error: BaseException) -> bool:
    """Whether its text has no lone surrogates: most handlers write UTF-8, and would lose the line."""
    text = _text(error)
    return _writable(text) == text


def _writable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
