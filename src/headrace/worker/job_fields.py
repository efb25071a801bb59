"""The current job in every log line that is made while it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from headrace.worker.current import CurrentJob, running


class JobFields(logging.Filter):
    """Adds ``job_id``, ``task``, ``attempt`` and ``queue`` to log records that are made in a handler; in a handler of
    several jobs at once, ``task``, ``queue`` and ``jobs``, their number. A field that a record has already stays.

    A worker adds it to the handlers that it finds when it starts. Name it in your own configuration for handlers that
    are made later: ``{"filters": {"job": {"()": "headrace.JobFields"}}}``.

    >>> import logging
    >>> from headrace import JobFields
    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(JobFields())
    >>> handler.setFormatter(logging.Formatter("%(job_id)s %(message)s", defaults={"job_id": "-"}))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; every record passes."""
        for name, value in current_fields().items():
            record.__dict__.setdefault(name, value)
        return True


def current_fields() -> dict[str, Any]:
    """What log lines say of the job, or the jobs, that run here."""
    jobs = running.get()
    if not jobs:
        return {}
    first = jobs[0]
    if len(jobs) > 1:
        return {"task": first.task, "queue": first.queue, "jobs": len(jobs)}
    job_id = first.id if isinstance(first, CurrentJob) else UUID(bytes=first.id)
    return {"job_id": str(job_id), "task": first.task, "attempt": first.attempt, "queue": first.queue}


_FIELDS = JobFields()


def add_job_fields() -> None:
    """Add the filter to every handler of this process that has none of its kind."""
    for handler in _handlers():
        if not any(isinstance(one, JobFields) for one in handler.filters):
            handler.addFilter(_FIELDS)


def _handlers() -> Iterator[logging.Handler]:
    root = logging.getLogger()
    yield from root.handlers
    for logger in list(root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield from logger.handlers
