"""Alerts that are on, and changes of them."""

from __future__ import annotations

from enum import StrEnum

from headrace.core.view import View


class Level(StrEnum):
    """How bad it is.

    >>> Level("critical") is Level.CRITICAL
    True
    """

    WARNING = "warning"
    CRITICAL = "critical"


class Firing(View, frozen=True):
    """An alert that is on.

    >>> Firing("queue_old", Level.WARNING, "mail", "the oldest due job has waited 11m").subject
    'mail'
    """

    name: str
    level: Level
    subject: str
    """What it is about, such as a queue, a schedule or a task; empty: the store."""
    sentence: str
    queue: str = ""
    """The queue that it is about, or that its subject belongs to, if there is one."""


class AlertChange(View, frozen=True):
    """An alert came on, changed its level, or is over.

    >>> AlertChange(Firing("queue_old", Level.WARNING, "mail", "…"), on=True).on
    True
    """

    alert: Firing
    on: bool
