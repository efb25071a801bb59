"""Runs a Django task in a worker, with the signals and the context that Django promises."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_exception
from typing import Any

from django.utils import timezone

try:
    from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.signals import task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    from django_tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.signals import task_finished, task_started
    from django_tasks.utils import normalize_json

from headrace.contrib.django.results import starts_of, workers_of
from headrace.worker.job import Job
from headrace.worker.slot import StopReason


class Runner:
    """One Django task, as functions that the app can register."""

    def __init__(self, sender: type, task: Any, attempts: int) -> None:
        self._sender = sender
        self._task = task
        self._attempts = attempts

    def run(self, job: Job[None], args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Run a plain function."""
        with self._around(job, args, kwargs) as result:
            _keep(result, self._task.func(*self._context(result), *args, **kwargs))
        return _stored(result)

    async def run_async(self, job: Job[None], args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Run an async function."""
        with self._around(job, args, kwargs) as result:
            _keep(result, await self._task.func(*self._context(result), *args, **kwargs))
        return _stored(result)

    def _context(self, result: Any) -> list[Any]:
        return [TaskContext(task_result=result)] if self._task.takes_context else []

    @contextmanager
    def _around(self, job: Job[None], args: list[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
        now = timezone.now()
        failed = job.failures
        result = TaskResult(
            task=self._task,
            id=str(job.id),
            status=TaskResultStatus.RUNNING,
            enqueued_at=job.enqueued_at,
            started_at=next(iter(starts_of(failed)), now),
            last_attempted_at=now,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self._task.backend,
            errors=[],
            worker_ids=[*workers_of(job.attempt, failed), job.worker],
        )
        task_started.send(self._sender, task_result=result)
        try:
            yield result
        except BaseException as error:
            kind = type(error)
            path = f"{kind.__module__}.{kind.__qualname__}"
            result.errors.append(TaskError(exception_class_path=path, traceback="".join(format_exception(error))))
            self._ended(job, result, error)
            raise
        self._ended(job, result, None)

    def _ended(self, job: Job[None], result: Any, error: BaseException | None) -> None:
        """Tell that the task has finished, unless it is to run again."""
        if error is None and not job.cancel.given_up:
            self._finish(result, TaskResultStatus.SUCCESSFUL)
        elif job.cancel.reason == StopReason.CANCELLED or not self._runs_again(job, error):
            self._finish(result, TaskResultStatus.FAILED)

    def _runs_again(self, job: Job[None], error: BaseException | None) -> bool:
        stopped = job.cancel.given_up or isinstance(error, CancelledError)
        left = job.attempt + 1 < (job.max_attempts or self._attempts)
        return left or (stopped and job.cancel.reason in (StopReason.STOPPING, StopReason.LEASE_LOST))

    def _finish(self, result: Any, status: Any) -> None:
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", status)
        task_finished.send(self._sender, task_result=result)


def _keep(result: Any, value: Any) -> None:
    object.__setattr__(result, "_return_value", normalize_json(value))


def _stored(result: Any) -> dict[str, Any]:
    """What the store keeps as the job's result."""
    return {"value": result._return_value, "worker": result.worker_ids[-1]}
