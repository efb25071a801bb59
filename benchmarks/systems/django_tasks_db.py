"""The database backend of Django's own Tasks framework."""

from __future__ import annotations

from typing import Any

from benchmarks.systems.blocking_peer import BlockingPeer, Caller
from benchmarks.systems.django_project import CONNECTED, on_file, on_server, start
from benchmarks.systems.peer import payload
from benchmarks.systems.postgres import DURABLE, PostgresSystem
from benchmarks.systems.system import stdlib_sqlite

_SHOWN = "task.enqueue(…)"


class _DjangoTasks(BlockingPeer):
    packages = ("django-tasks-db", "django-tasks", "psycopg[binary]")
    distributions = ("django-tasks-db", "Django")


class DjangoTasksSqlite(_DjangoTasks):
    """On a file."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "sqlite", f"{_SHOWN}, WAL, synchronous=FULL, {CONNECTED}")

    def engine(self) -> dict[str, str]:
        return stdlib_sqlite()

    def caller(self, place: str) -> Caller:
        return _caller(on_file(place))


class DjangoTasksPostgres(_DjangoTasks, PostgresSystem):
    """On PostgreSQL."""

    distributions = (*_DjangoTasks.distributions, "psycopg")

    def __init__(self, name: str) -> None:
        PostgresSystem.__init__(self, name, f"{DURABLE}, {_SHOWN}, {CONNECTED}")

    def caller(self, place: str) -> Caller:
        return _caller(on_server(self.url(place)))


def _caller(database: dict[str, Any]) -> Caller:
    backend = {"BACKEND": "django_tasks_db.DatabaseBackend"}
    start(database, ["django_tasks", "django_tasks_db"], TASKS={"default": backend})
    from django_tasks import task
    from django_tasks_db.models import DBTaskResult

    made: Any = task()(noop)
    globals()["noop"] = made  # it looks its tasks up by their import path
    return Caller(lambda: made.enqueue(**payload()), DBTaskResult.objects.count)


def noop(n: int, pad: str) -> None:
    pass
