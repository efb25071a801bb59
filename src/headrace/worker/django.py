"""Django keeps a database connection per thread and looks after it around requests. Around plain functions, we do."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger("headrace")


def tended(call: Callable[[], T]) -> T:
    """What the call gives. Before and after it, connections of this thread that broke or are too old are closed, so
    that the next use makes another. Costs nothing where Django is not used."""
    _tend()
    try:
        return call()
    finally:
        _tend()


def part() -> None:
    """Close the connections of this thread, which ends."""
    _tend(for_good=True)


def _tend(*, for_good: bool = False) -> None:
    if "django.db" not in sys.modules:
        return
    try:
        from django.conf import settings
        from django.db import close_old_connections, connections

        if settings.configured:
            connections.close_all() if for_good else close_old_connections()
    except Exception:
        log.warning("connections of Django could not be looked after", exc_info=True)
