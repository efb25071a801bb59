"""Jobs and Django's transactions: a job is there when what it is about is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import ParamSpec, TypeVar, cast
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from headrace.api.bind import Bound, made
from headrace.api.sync import SyncApp
from headrace.api.task import Task
from headrace.contrib.django.project import jobs_alias, project_app
from headrace.core.validation import check_jobs
from headrace.types import NewJob

P = ParamSpec("P")
R = TypeVar("R")


class Deferred:
    """Stores jobs once: when the transaction commits, or when a test asks for them before."""

    def __init__(self, store: Callable[[], object]) -> None:
        self._store: Callable[[], object] | None = store

    def __call__(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store()


@cache
def jobs() -> SyncApp:
    """The app for views and other plain code: ``jobs().enqueue(task, …)`` stores at once, ``jobs().call(task, …)``
    waits for the result. One for the whole process; threads share it."""
    return SyncApp(project_app())


def bind(using: str | None = None) -> Bound:
    """Enqueue and complete jobs in the transaction of a Django database: by default that of the jobs, which must be
    PostgreSQL. See ``App.bind``."""
    return cast(Bound, project_app().bind(connections[using or jobs_alias() or DEFAULT_DB_ALIAS]))


def enqueue(task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> UUID:
    """Store a job when the transaction that is open now commits; without one, at once. Returns the job's id.

    If the jobs are in this PostgreSQL database, the job is part of the transaction. On other stores it is stored just
    after the commit: if the process dies in between, it is lost.
    """
    return enqueue_many([made(task, args, kwargs)])[0]


def enqueue_many(new: Iterable[NewJob], using: str | None = None) -> list[UUID]:
    """The same for jobs that ``task.job(…)`` makes. ``using``: the database whose transaction counts; by default that
    of the jobs, or else the default one."""
    given = check_jobs(new)
    alias = using or jobs_alias() or DEFAULT_DB_ALIAS
    if not connections[alias].in_atomic_block:
        return [handle.id for handle in jobs().enqueue_many(given)]
    if alias == jobs_alias():
        return [handle.id for handle in bind(alias).enqueue_many(given)]
    named = project_app().client.packer.with_ids(given)
    transaction.on_commit(Deferred(partial(jobs().enqueue_many, named)), using=alias)
    return [cast(UUID, job.job_id) for job in named]
