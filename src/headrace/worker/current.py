"""The job that runs here: a context variable, so that everything a handler calls can know its job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from uuid import UUID

from msgspec import Struct

from headrace.core.progress import NOTED, Noted, Progress, check_progress
from headrace.seam.records import Leased


class CurrentJob(Struct, frozen=True):
    """What ``current_job()`` tells about the job that runs here.

    >>> from uuid import UUID
    >>> from headrace import CurrentJob
    >>> def tag(job: CurrentJob) -> str:
    ...     return f"{job.task}#{job.attempt}"
    >>> tag(CurrentJob(UUID(int=7), "charge", "default", 2))
    'charge#2'
    """

    id: UUID
    task: str
    queue: str
    attempt: int = 0
    tenant: str = ""
    key: str | None = None


running: ContextVar[Sequence[Leased | CurrentJob]] = ContextVar("headrace-running", default=())
"""The jobs that run in this context: one, or those of a batch."""

Say = Callable[[Leased | CurrentJob, Progress], None]
"""Takes note of the progress of a job."""
saying: ContextVar[Say | None] = ContextVar("headrace-saying", default=None)
"""Where the worker that runs in this context, or its child, takes note of progress."""


def progress(done: float | None, note: str = "") -> Noted:
    """Say how far the job that this code runs for has come: ``done`` from 0 to 1, or None if you do not know. As
    ``job.progress(…)``, for code that has no ``Job``: deep inside a task, and in child processes. Outside of a handler,
    and in one that was called with several jobs at once, it does nothing.

    >>> from headrace import App, SyncApp, progress
    >>> app = App("memory://")
    >>> @app.task
    ... def export(rows: int) -> int:
    ...     for row in range(rows):
    ...         progress(row / rows, f"{row} rows written")
    ...     return rows
    >>> export(3)  # called by hand: nobody hears it
    3
    """
    said, say, jobs = check_progress(done, note), saying.get(), running.get()
    if say is not None and len(jobs) == 1:
        say(jobs[0], said)
    return NOTED


def current_job() -> CurrentJob | None:
    """The job that this code runs for: in an async handler and what it calls, in its threads and child processes.
    None outside of a handler, and in one that was called with several jobs at once.

    >>> from headrace import App, SyncApp, current_job
    >>> app = App("memory://")
    >>> def audit(what: str) -> None:  # far away from the handler
    ...     job = current_job()
    ...     print(what, "by hand" if job is None else f"by {job.task}")
    >>> @app.task(name="close")
    ... def close(account: int) -> None:
    ...     audit(f"account {account} closed")
    >>> audit("account 1 closed")
    account 1 closed by hand
    >>> with SyncApp(app) as jobs:
    ...     handle = jobs.enqueue(close, 2)
    ...     jobs.drain()
    account 2 closed by close
    """
    jobs = running.get()
    if len(jobs) != 1:
        return None
    job = jobs[0]
    if isinstance(job, CurrentJob):
        return job
    return CurrentJob(UUID(bytes=job.id), job.task, job.queue, job.attempt, job.tenant, job.key)
