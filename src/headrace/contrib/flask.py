"""Headrace in Flask: tasks with the application context, and a worker beside the web app if you like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Flask, current_app

from headrace.api.app import App
from headrace.api.sync import SyncApp
from headrace.contrib.worker_thread import WorkerThread
from headrace.core.callables import is_async
from headrace.errors import ConfigError
from headrace.types import Outcome
from headrace.worker.current import CurrentJob
from headrace.worker.job import Job
from headrace.worker.middleware import Next


class Headrace:
    """An extension: ``Headrace(web, jobs)``, or ``init_app(web)`` later.

    Tasks run within ``web.app_context()``, plain ones in their own thread or process. So what you do at the end of a
    context, such as to close a database session, is done after each task, where it ran. With ``worker`` jobs run in the
    web process, too, in a thread that the first request starts: for small services.
    """

    def __init__(self, web: Flask | None = None, jobs: App | None = None, *, worker: bool = False) -> None:
        if jobs is None:
            raise ConfigError("expected the headrace.App whose jobs the web app enqueues: Headrace(web, jobs)")
        self.app = jobs
        self.jobs = SyncApp(jobs)
        """For views: ``jobs.get(id)``, ``jobs.wait(id)``, ``jobs.call(task, …)``."""
        self.worker = WorkerThread(jobs)
        self._with_worker = worker
        if web is not None:
            self.init_app(web)

    def init_app(self, web: Flask) -> None:
        """Join a web app."""
        if "headrace" in web.extensions:
            raise ConfigError("this Flask app has a Headrace already; make one, and use it everywhere")
        web.extensions["headrace"] = self

        async def around_async(job: Job[Any], next: Next) -> Outcome:
            if not is_async(self.app.tasks[job.task].function):
                return await next(job)
            with web.app_context():
                return await next(job)

        def around_plain(job: CurrentJob, next: Callable[[], Outcome]) -> Outcome:
            with web.app_context():
                return next()

        self.app.middleware(around_async)
        self.app.plain_middleware(around_plain)
        if self._with_worker:
            web.before_request(self.worker.start)


def jobs() -> SyncApp:
    """The app of the web app whose request, or whose task, this is."""
    found: Headrace | None = current_app.extensions.get("headrace")
    if found is None:
        raise ConfigError("this Flask app has no Headrace: make it with Headrace(web, jobs) of headrace.contrib.flask")
    return found.jobs
