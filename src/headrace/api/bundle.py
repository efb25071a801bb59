"""A bundle: tasks that are defined apart from an app, for an app to include."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack, cast

from headrace.api.client import Client
from headrace.api.options import BundleOptions, known, shared
from headrace.api.registry import Registry
from headrace.api.task import Task
from headrace.errors import ConfigError
from headrace.schedules.spec import CronOptions, EveryOptions
from headrace.types import Duration, NewJob
from headrace.worker.middleware import PlainMiddleware
from headrace.worker.startups import Startups


class Bundle(Registry):
    """Tasks of one module, without an app: ``app.include(bundle)`` adds them to one. The options that a bundle is made
    with hold for each of its tasks that does not set its own.

    >>> from headrace import App, Bundle
    >>> mail = Bundle(queue="mail", timeout="30s")
    >>> @mail.task(name="welcome")
    ... async def welcome(user_id: int) -> None: ...
    >>> app = App("memory://")
    >>> app.include(mail)
    >>> app.tasks["welcome"].queue
    'mail'
    """

    _kind = "bundle"

    def __init__(self, **options: Unpack[BundleOptions]) -> None:
        super().__init__()
        known(options, BundleOptions, "Bundle: ")
        shared(options, "of a bundle")
        self._options = options
        self._owner: Registry | None = None
        self._schedules: list[Callable[[Registry], Any]] = []

    @property
    def client(self) -> Client:
        """That of the app that includes it."""
        return self._app().client

    def _app(self) -> Registry:
        if self._owner is None:
            names = ", ".join(self.tasks) or "none yet"
            raise ConfigError(f"no app includes this bundle (its tasks: {names}); call app.include(bundle) first")
        return self._owner

    @property
    def startups(self) -> Startups:
        """Those of the app."""
        return self._app().startups

    @property
    def plain_chain(self) -> Sequence[PlainMiddleware]:
        """That of the app."""
        return self._app().plain_chain

    def every(self, interval: Duration, job: Task[[], Any] | NewJob, **options: Unpack[EveryOptions]) -> None:
        """Declare a schedule at equal intervals, as ``app.every`` does, once an app includes the bundle."""
        self._schedules.append(lambda app: app.every(interval, job, **options))

    def cron(self, expression: str, job: Task[[], Any] | NewJob, **options: Unpack[CronOptions]) -> None:
        """Declare a schedule by the clock, as ``app.cron`` does, once an app includes the bundle."""
        self._schedules.append(lambda app: app.cron(expression, job, **options))

    def _with(self, options: Any) -> Any:
        return cast(Any, {**self._options, **options})

    def _add(self, task: Any) -> None:
        super()._add(task)
        if self._owner is not None:
            self._owner._add(task)

    def join(self, app: Registry) -> None:
        """Become a part of the app."""
        if self._owner is app:
            return
        if self._owner is not None:
            raise ConfigError("this bundle is included by another app already; make one bundle for each")
        for name in self.tasks:
            app._check_free(name)
        for task in self.tasks.values():
            app._add(task)
        self._owner = app
        for declare in self._schedules:
            declare(app)
