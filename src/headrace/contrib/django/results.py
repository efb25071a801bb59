"""A job as a result of Django's Tasks framework."""

from __future__ import annotations

import re
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
    failed_at = [to_datetime(failure.at) for failure in info.failures if failure.at]
    started = _instant(stored.get("started_at")) or next(iter(failed_at), None)
    last = _instant(stored.get("started_at")) or next(iter(failed_at[::-1]), None)
    result = TaskResult(
        task=task,
        id=str(info.id),
        status=_STATES[info.state],
        enqueued_at=info.enqueued_at,
        started_at=started,
        last_attempted_at=last,
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


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _workers(info: JobInfo, stored: dict[str, Any]) -> list[str]:
    """One for each attempt. Who made an attempt that failed is not kept."""
    last = stored.get("worker") or info.worker
    return ["unknown"] * info.attempt + ([last] if last else [])


def _path(failure: Failure) -> str:
    """The class of the exception. Its module is in the last lines of the traceback, unless it is built in."""
    name = re.escape(failure.type)
    found = re.findall(rf"^((?:\w+\.)*){name}(?=:|$)", failure.traceback, re.M)
    return f"{found[-1] if found and found[-1] else 'builtins.'}{failure.type}"
