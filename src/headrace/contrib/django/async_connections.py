"""Django's connections in async tasks: these reach the ORM in a thread of asgiref, which a worker does not know."""

from __future__ import annotations

from threading import current_thread
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from headrace.types import Outcome
from headrace.worker.job import Job
from headrace.worker.middleware import Next

_used = False
"""Whether a connection was ever made in a thread other than those of plain tasks."""


async def fresh_connections(job: Job[Any], next: Next) -> Outcome:
    """Middleware: before and after a job, close connections that are broken or too old, in the thread that
    ``sync_to_async`` uses. Costs nothing as long as no async task has used the ORM."""
    if not _used:
        return await next(job)
    await sync_to_async(_close_old)()
    error: BaseException | None = None
    try:
        outcome = await next(job)
    except BaseException as raised:
        error = raised
    # Not in the handler of the exception: asgiref would raise it once more, and the traceback would begin there.
    await sync_to_async(_close_old)()
    if error is not None:
        raise error
    return outcome


def _close_old() -> None:
    """As ``close_old_connections``, but not those in a transaction: in a test, everything is in one."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def note_use(connection: Any, **more: Any) -> None:
    """A signal handler: a connection was made."""
    global _used
    if current_thread().name != "headrace-thread":
        _used = True
