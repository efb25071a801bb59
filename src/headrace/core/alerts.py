"""Alerts: conditions that somebody should look at, reported once and not again and again."""

from __future__ import annotations

import time
from asyncio import _get_running_loop
from enum import StrEnum

_PAUSE = 60.0
"""Seconds until the same alert on the same subject is reported again."""
_MOST = 100
"""Subjects that one alert names within that time."""


class Alert(StrEnum):
    """The names of alerts."""

    LEASE_NEARLY_OVER = "lease_nearly_over"
    """A lease was renewed, or its job ended, when more than nine tenths of it had passed."""
    SCHEDULE_LATE = "schedule_late"
    """A slot was missed, or was planned late by more than twice the distance between slots."""
    PLANNER_BEHIND = "planner_behind"
    """Many schedules had been due for long before a planner looked at them."""
    SHARE_UNATTENDED = "share_unattended"
    """No worker plans one of the shares of schedules, so other workers had to."""
    CLEANUP_FAILING = "cleanup_failing"
    """Several sweeps failed in a row."""
    SAFETY_STOP = "safety_stop"
    """Retention deletes nothing that is too old before somebody has looked: it would be much, or the clock is odd."""
    MANY_DELETED = "many_deleted"
    """One run of retention deleted more than 100,000 records because of their age."""
    BUDGET_NEARLY_USED = "budget_nearly_used"
    """The store takes up 80 % of the bytes that it has, or may have; from 85 % of a budget on, new jobs are refused."""
    ARCHIVE_FAILING = "archive_failing"
    """Ended jobs could not be written to the vault several times in a row, so none is removed."""
    DEAD_LETTERS_FULL = "dead_letters_full"
    """There are as many dead letters, or bytes of them, as are kept: the oldest go."""
    KEYS_FREED = "keys_freed"
    """Keys of completed jobs were freed early, because there were too many."""
    ROWS_WAITING = "rows_waiting"
    """Rows of a hot table are too old, but not processed yet, and stay."""
    UNKNOWN_TASK = "unknown_task"
    """A worker claimed a job of a task that it does not know."""
    THREAD_LEFT_BEHIND = "thread_left_behind"
    """A job was given up on, but its handler's thread still runs."""
    TOO_MANY_THREADS = "too_many_threads"
    """Too many such threads still run; their worker claims no more jobs."""
    QUEUE_FULL = "queue_full"
    """A queue, or the store, refused a job."""
    OBJECTS_AWAY = "objects_away"
    """The object store did not answer: sections stay in the store, and jobs that need theirs wait."""
    STORE_SLOW = "store_slow"
    """A call to the store took more than a second."""


class Throttle:
    """Decides whether to report an alert: at most once a minute per subject, and at most a hundred subjects."""

    def __init__(self) -> None:
        self._told: dict[Alert, dict[str, float]] = {}
        """When each subject was last reported, earliest first."""

    def allows(self, name: Alert, subject: str, now: float) -> bool:
        """Whether it may be reported now. If so, it counts as reported."""
        told = self._told.setdefault(name, {})
        if _recent(told.get(subject), now):
            return False
        while told and not _recent(told[oldest := next(iter(told))], now):
            del told[oldest]
        if len(told) >= _MOST:
            return False
        told[subject] = now
        return True


def _recent(at: float | None, now: float) -> bool:
    """An instant in the future comes from another loop's clock and does not count."""
    return at is not None and 0 <= now - at < _PAUSE


def moment() -> float:
    """Seconds by the running loop's clock, or by ``time.monotonic`` if no loop runs."""
    loop = _get_running_loop()
    return time.monotonic() if loop is None else loop.time()
