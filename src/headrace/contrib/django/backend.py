"""A backend for Django's Tasks framework: ``django.tasks`` (Django 6), or its backport ``django_tasks``.

    TASKS = {"default": {"BACKEND": "headrace.contrib.django.backend.HeadraceBackend", "QUEUES": ["default", "mail"]}}

Every Django task is a task of the project's Headrace app, named by its path. So ``manage.py headrace worker`` runs it,
and limits, the command line and the admin know it.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any

from django.utils import timezone

try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued
except ImportError:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued

from headrace.contrib.django.project import made_app
from headrace.contrib.django.results import result_of
from headrace.contrib.django.running import Runner
from headrace.contrib.django.transactions import enqueue_many, jobs
from headrace.errors import InvalidJob, JobNotFound
from headrace.worker.retry import exponential


class HeadraceBackend(BaseTaskBackend):
    """Stores tasks as jobs, in the transaction that is open, and reads their results.

    ``OPTIONS`` may have ``max_attempts`` (1: as Django's own backends, a task that raised has failed) and
    ``result_ttl`` (how long return values are kept, ``"1d"``).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._attempts = self.options.get("max_attempts", 1)
        self._result_ttl = self.options.get("result_ttl", "1d")

    def validate_task(self, task: Any) -> None:
        """Refuse what cannot run, and make the task known to the app: Django calls this for every task it makes."""
        super().validate_task(task)
        app, path = made_app(), task.module_path
        if path not in app.tasks:
            runner = Runner(type(self), task, self._attempts)
            function = runner.run_async if iscoroutinefunction(task.func) else runner.run
            retry = exponential(self._attempts)
            app.task(name=path, queue=task.queue_name, retry=retry, result_ttl=self._result_ttl)(function)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a job when the open transaction commits; without one, at once."""
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        [job_id] = enqueue_many([self._job(task, result.args, result.kwargs)])
        object.__setattr__(result, "id", str(job_id))
        task_enqueued.send(type(self), task_result=result)
        return result

    def _job(self, task: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Django's higher priorities run first; Headrace's lower ones do."""
        known: Any = made_app().tasks[task.module_path]
        options = {"queue": task.queue_name, "priority": -int(task.priority)}
        options |= {"max_attempts": self._attempts, "result_ttl": self._result_ttl}
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        later = {} if run_at is None else {"run_at": run_at}
        return known.options(**options, **later).job(args, kwargs)

    def get_result(self, result_id: str) -> Any:
        """The result as the store knows it now."""
        try:
            info = jobs().get(result_id)
        except (JobNotFound, InvalidJob):
            raise TaskResultDoesNotExist(result_id) from None
        found = result_of(info, self.alias)
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return found
