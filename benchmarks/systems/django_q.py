"""Django Q2: a package per job, in a table of Django's database or in a list of Valkey."""

from __future__ import annotations

from typing import Any

from benchmarks.gate import Gate
from benchmarks.systems.blocking_peer import BlockingPeer, Caller
from benchmarks.systems.django_project import CONNECTED, on_file, on_server, start
from benchmarks.systems.peer import payload
from benchmarks.systems.postgres import DURABLE, PostgresSystem
from benchmarks.systems.system import Answer, stdlib_sqlite
from benchmarks.systems.valkey import ValkeySystem

_HERE = "benchmarks.systems.django_q"
_SHOWN = "async_task(…)"


class _DjangoQ(BlockingPeer):
    packages = ("django-q2", "psycopg[binary]", "redis", "hiredis")
    distributions = ("django-q2", "Django")


class DjangoQSqlite(_DjangoQ):
    """Its ORM broker on a file."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "sqlite", f"{_SHOWN}, ORM broker, WAL, synchronous=FULL, {CONNECTED}")

    def engine(self) -> dict[str, str]:
        return stdlib_sqlite()

    def caller(self, place: str) -> Caller:
        return _caller(on_file(place), orm="default")


class DjangoQPostgres(_DjangoQ, PostgresSystem):
    """Its ORM broker on PostgreSQL."""

    distributions = (*_DjangoQ.distributions, "psycopg")

    def __init__(self, name: str) -> None:
        PostgresSystem.__init__(self, name, f"{DURABLE}, {_SHOWN}, ORM broker, {CONNECTED}")

    def caller(self, place: str) -> Caller:
        return _caller(on_server(self.url(place)), orm="default")


class DjangoQValkey(_DjangoQ, ValkeySystem):
    """Its broker for Redis."""

    distributions = (*_DjangoQ.distributions, "redis", "hiredis")

    def __init__(self, name: str) -> None:
        ValkeySystem.__init__(self, name, f"{_SHOWN}, broker on a list")

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        return BlockingPeer.enqueue(self, gate, place, count)

    def caller(self, place: str) -> Caller:
        return _caller(on_file(place), redis=self.url(place))


def _caller(database: dict[str, Any], **broker: str) -> Caller:
    start(database, ["django.contrib.contenttypes", "django_q"], Q_CLUSTER={"name": "bench", **broker})
    from django_q.brokers import get_broker
    from django_q.tasks import async_task

    return Caller(lambda: async_task(f"{_HERE}.noop", **payload()), get_broker().queue_size)


def noop(n: int, pad: str) -> None:
    pass
