"""Django keeps a database connection per thread, and closes old ones around requests. Around jobs, we do so."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger("headrace")


def with_fresh_connections(call: Callable[[], T]) -> T:
    """The result of the call. Before and after it, connections of this thread that are broken or too old are closed;
    the next use opens new ones. Costs nothing without Django."""
    _close()
    try:
        return call()
    finally:
        _close()


def close_connections() -> None:
    """Close all connections of this thread, which is about to end."""
    _close(all_of_them=True)


def _close(*, all_of_them: bool = False) -> None:
    if "django.db" not in sys.modules:
        return
    try:
        from django.conf import settings
        from django.db import close_old_connections, connections

        if settings.configured:
            connections.close_all() if all_of_them else close_old_connections()
    except Exception:
        log.warning("cannot close old database connections of Django; the job goes on", exc_info=True)
