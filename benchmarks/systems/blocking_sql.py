"""Libraries that block, on PostgreSQL and, where they can, on SQLite: how each of them stores a job there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from benchmarks.systems.blocking_peer import BlockingPeer, Caller
from benchmarks.systems.peer import payload
from benchmarks.systems.postgres import DURABLE, PostgresSystem
from benchmarks.systems.system import stdlib_sqlite

_HERE = "benchmarks.systems.blocking_sql"


class _OnPostgres(BlockingPeer, PostgresSystem):
    how = ""

    def __init__(self, name: str) -> None:
        PostgresSystem.__init__(self, name, f"{DURABLE}, {self.how}")

    def count(self, place: str, table: str) -> int:
        """The rows of a table."""
        with self.connect(place) as connection:
            [[found]] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(found)


class ProcrastinateSync(_OnPostgres):
    """Procrastinate with its connector that blocks."""

    packages = ("procrastinate", "psycopg[binary]")
    distributions = ("procrastinate", "psycopg")
    how = "task.defer(…), SyncPsycopgConnector"

    def caller(self, place: str) -> Caller:
        import procrastinate

        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=self.url(place)))
        app.open()
        app.schema_manager.apply_schema()
        noop = app.task(name="noop", queue="bench")(_noop)
        return Caller(lambda: noop.defer(**payload()), lambda: self.count(place, "procrastinate_jobs"))


class ChancySync(_OnPostgres):
    """Chancy with its pool that blocks."""

    packages = ("chancy", "psycopg[binary]")
    distributions = ("chancy", "psycopg")
    how = "sync_push(…)"

    def caller(self, place: str) -> Caller:
        import asyncio

        import chancy

        logging.getLogger("chancy").setLevel(logging.WARNING)

        async def migrate() -> None:
            async with chancy.Chancy(self.url(place), log=logging.getLogger("chancy")) as app:
                await app.migrate()

        asyncio.run(migrate())
        app = chancy.Chancy(self.url(place), log=logging.getLogger("chancy"))
        app.sync_pool.open()
        app.sync_declare(chancy.Queue(name="bench"))
        job = chancy.Job(func=f"{_HERE}._noop", kwargs=payload(), queue="bench")
        return Caller(lambda: app.sync_push(job), lambda: self.count(place, "chancy_jobs"))


class DramatiqPostgres(_OnPostgres):
    """Dramatiq over dramatiq-pg."""

    packages = ("dramatiq-pg", "psycopg2-binary", "psycopg[binary]", "setuptools<81")
    distributions = ("dramatiq", "dramatiq-pg", "psycopg2-binary")
    how = "actor.send(…), dramatiq-pg, without results"

    def caller(self, place: str) -> Caller:
        import dramatiq
        from dramatiq_pg import PostgresBroker, generate_init_sql

        with self.connect(place) as connection:
            connection.execute(generate_init_sql())
        broker = PostgresBroker(url=self.url(place), results=False)
        noop = dramatiq.actor(_noop, actor_name="noop", broker=broker, queue_name="bench")
        return Caller(lambda: noop.send(**payload()), lambda: self.count(place, "dramatiq.queue"))


class HueyPostgres(_OnPostgres):
    """Huey over peewee."""

    packages = ("huey", "peewee", "psycopg[binary]")
    distributions = ("huey", "peewee", "psycopg")
    how = "task(…), SqlHuey"

    def caller(self, place: str) -> Caller:
        from huey.contrib.sql_huey import SqlHuey
        from peewee import PostgresqlDatabase

        huey: Any = SqlHuey("bench", database=PostgresqlDatabase(self.url(place)))
        noop = huey.task(name="noop")(_noop)
        return Caller(lambda: noop(**payload()), huey.pending_count)


class CeleryPostgres(_OnPostgres):
    """Celery over kombu's transport for SQLAlchemy."""

    packages = ("celery", "sqlalchemy", "psycopg[binary]")
    distributions = ("celery", "kombu", "sqlalchemy", "psycopg")
    how = "apply_async(…), kombu's SQLAlchemy transport (experimental, as its documents say), ignore_result"

    def caller(self, place: str) -> Caller:
        put = _celery(self.url(place).replace("postgresql://", "sqla+postgresql+psycopg://", 1))
        return Caller(put, lambda: self.count(place, "kombu_message"))


class CelerySqlite(BlockingPeer):
    """Celery over kombu's transport for SQLAlchemy, on a file."""

    packages = CeleryPostgres.packages
    distributions = ("celery", "kombu", "sqlalchemy")

    def __init__(self, name: str) -> None:
        super().__init__(
            name, "sqlite", f"{CeleryPostgres.how}, rollback journal, synchronous=FULL (SQLite's own defaults)"
        )

    def engine(self) -> dict[str, str]:
        return stdlib_sqlite()

    def caller(self, place: str) -> Caller:
        import sqlite3

        path = Path(place, "queue.db")
        put = _celery(f"sqla+sqlite:///{path}")

        def stored() -> int:
            with sqlite3.connect(path) as connection:
                [[found]] = connection.execute("SELECT count(*) FROM kombu_message").fetchall()
            return int(found)

        return Caller(put, stored)


def _celery(url: str) -> Any:
    import celery

    app: Any = celery.Celery("bench", broker=url)
    app.conf.update(task_default_queue="bench", task_ignore_result=True)
    noop = app.task(name="noop", shared=False)(_noop)
    return lambda: noop.apply_async(kwargs=payload())


def _noop(n: int, pad: str) -> None:
    pass
