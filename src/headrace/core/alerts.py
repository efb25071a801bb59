"""Alerts: what somebody should look at, told once and not with every breath."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum

_PAUSE = 60.0
"""Seconds in which nothing more is told of the same thing."""
_MOST = 100
"""Subjects of one alert that are told of in that time, whatever happens."""


class Alert(StrEnum):
    """The names of alerts."""

    LEASE_NEARLY_OVER = "lease_nearly_over"
    """A lease was renewed, or its job ended, when more than nine tenths of it had passed."""
    SCHEDULE_LATE = "schedule_late"
    """A slot was missed, or planned more than two distances between slots after its instant."""
    PLANNER_BEHIND = "planner_behind"
    """A great many schedules were due that nobody had looked at for long."""
    SHARE_UNATTENDED = "share_unattended"
    """No worker plans one of the shares of schedules, and others had to."""
    CLEANUP_FAILING = "cleanup_failing"
    """Several sweeps failed in a row."""
    KEYS_FREED = "keys_freed"
    """Keys of completed jobs were freed before their time, as there were too many."""
    UNKNOWN_TASK = "unknown_task"
    """A worker claimed a job of a task that it does not know."""
    THREAD_LEFT_BEHIND = "thread_left_behind"
    """A job was given up on, and its handler's thread goes on."""
    TOO_MANY_THREADS = "too_many_threads"
    """So many of those go on that their worker claims nothing more."""
    QUEUE_FULL = "queue_full"
    """A queue, or the store, refused a job."""
    STORE_SLOW = "store_slow"
    """A call of the store was answered after more than a second."""


class Restraint:
    """Whether to tell: of each subject of an alert at most once a minute, and of a hundred subjects at most."""

    def __init__(self) -> None:
        self._told: dict[Alert, dict[str, float]] = {}
        """When, the earliest first."""

    def allows(self, name: Alert, subject: str, now: float) -> bool:
        """Whether it may be told now; if so it is taken to be."""
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
    """An instant that is still to come is one of another loop's clock, and counts for nothing."""
    return at is not None and 0 <= now - at < _PAUSE


def moment() -> float:
    """Seconds by the clock of the running loop; where none runs, by the one that loops go by."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
