"""A job as a result of Django's Tasks framework."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils.module_loading import import_string

try:
    from django.tasks.base import Task, TaskError, TaskResult, TaskResultStatus
except ImportError:
    from django_tasks.base import Task, TaskError, TaskResult, TaskResultStatus

from headrace.api.info import JobInfo
from headrace.seam.instants import to_datetime
from headrace.types import Failure, JobState

UNKNOWN = "unknown"
"""The name of a worker that is not known any more."""
_STATES = {
    JobState.AVAILABLE: TaskResultStatus.READY,
    JobState.PAUSED: TaskResultStatus.READY,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.COMPLETED: TaskResultStatus.SUCCESSFUL,
    JobState.CANCELLED: TaskResultStatus.FAILED,
    JobState.FAILED: TaskResultStatus.FAILED,
}


def result_of(info: JobInfo, backend: str) -> Any:
    """The result; None if the job is not one of a Django task."""
    task = _task(info.task)
    if task is None or not isinstance(info.args, dict) or info.args.keys() != {"args", "kwargs"}:
        return None
    stored = info.result if isinstance(info.result, dict) else {}
    starts = starts_of(info.failures) + [info.started_at] * (info.started_at is not None)
    result = TaskResult(
        task=task,
        id=str(info.id),
        status=_STATES[info.state],
        enqueued_at=info.enqueued_at,
        started_at=starts[0] if starts else None,
        last_attempted_at=starts[-1] if starts else None,
        finished_at=info.finished_at,
        args=info.args["args"],
        kwargs=info.args["kwargs"],
        backend=backend,
        errors=[TaskError(exception_class_path=_path(one), traceback=one.traceback) for one in info.failures],
        worker_ids=_workers(info, stored),
    )
    object.__setattr__(result, "_return_value", stored.get("value"))
    return result


def _task(path: str) -> Any:
    try:
        found = import_string(path)
    except ImportError:
        return None
    return found if isinstance(found, Task) else None


def starts_of(failed: Sequence[Failure]) -> list[datetime]:
    """When attempts that failed began."""
    return [to_datetime(failure.since) for failure in failed if failure.since]


def workers_of(attempt: int, failed: Sequence[Failure]) -> list[str]:
    """The worker of each attempt that failed: the store keeps the last 20, so the others are unknown."""
    known = {failure.attempt: failure.worker for failure in failed}
    return [known.get(number) or UNKNOWN for number in range(1, attempt + 1)]


def _workers(info: JobInfo, stored: dict[str, Any]) -> list[str]:
    """One for each attempt, also for the one that runs or has succeeded."""
    last = info.state in (JobState.RUNNING, JobState.COMPLETED)
    return workers_of(info.attempt, info.failures) + [stored.get("worker") or info.worker or UNKNOWN] * last


def _path(failure: Failure) -> str:
    """The class of the exception. Its module is in the last lines of the traceback, unless it is built in."""
    name = re.escape(failure.type)
    found = re.findall(rf"^((?:\w+\.)*){name}(?=:|$)", failure.traceback, re.M)
    return f"{found[-1] if found and found[-1] else 'builtins.'}{failure.type}"
