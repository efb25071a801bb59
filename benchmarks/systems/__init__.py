"""The systems under test, by name. Loading one imports nothing but Python's own library."""

from __future__ import annotations

from benchmarks.systems.arq import Arq
from benchmarks.systems.awa import Awa
from benchmarks.systems.bare import BareSqlite
from benchmarks.systems.bare_postgres import BarePostgres
from benchmarks.systems.bare_valkey import BareValkey, VariadicValkey
from benchmarks.systems.blocking_sql import (
    CeleryPostgres,
    CelerySqlite,
    ChancySync,
    DramatiqPostgres,
    HueyPostgres,
    ProcrastinateSync,
)
from benchmarks.systems.celery import Celery
from benchmarks.systems.chancy import Chancy
from benchmarks.systems.django_q import DjangoQPostgres, DjangoQSqlite, DjangoQValkey
from benchmarks.systems.django_tasks_db import DjangoTasksPostgres, DjangoTasksSqlite
from benchmarks.systems.dramatiq import Dramatiq
from benchmarks.systems.headrace import HeadraceMemory, HeadraceSqlite
from benchmarks.systems.headrace_postgres import HeadracePostgres
from benchmarks.systems.headrace_sync import SyncPostgres, SyncSqlite, SyncValkey
from benchmarks.systems.headrace_valkey import HeadraceValkey
from benchmarks.systems.huey import HueySqlite
from benchmarks.systems.huey_valkey import HueyValkey
from benchmarks.systems.legacy import LegacyPostgres
from benchmarks.systems.litequeue import LiteQueue
from benchmarks.systems.minimal import MinimalSqlite
from benchmarks.systems.minimal_postgres import MinimalPostgres
from benchmarks.systems.minimal_valkey import MinimalValkey
from benchmarks.systems.persistqueue import PersistQueue
from benchmarks.systems.pgqueuer import PgQueuer
from benchmarks.systems.procrastinate import Procrastinate
from benchmarks.systems.rq import Rq
from benchmarks.systems.system import System
from benchmarks.systems.taskiq import Taskiq

_SYSTEMS: tuple[System, ...] = (
    HeadraceMemory("headrace-memory"),
    HeadraceSqlite("headrace-sqlite-full", durability="full"),
    HeadraceSqlite("headrace-sqlite-normal", durability="normal"),
    SyncSqlite("headrace-sqlite-sync", durability="full"),
    BareSqlite("bare-sqlite-full", durability="full"),
    BareSqlite("bare-sqlite-normal", durability="normal"),
    MinimalSqlite("minimal-sqlite-full", durability="full"),
    MinimalSqlite("minimal-sqlite-normal", durability="normal"),
    LiteQueue("litequeue", durability=None),
    LiteQueue("litequeue-full", durability="full"),
    HueySqlite("huey-sqlite"),
    PersistQueue("persist-queue"),
    CelerySqlite("celery-sqlite"),
    DjangoQSqlite("django-q-sqlite"),
    DjangoTasksSqlite("django-tasks-sqlite"),
    HeadracePostgres("headrace-postgres"),
    SyncPostgres("headrace-postgres-sync"),
    BarePostgres("bare-postgres"),
    MinimalPostgres("minimal-postgres"),
    LegacyPostgres("legacy-postgres"),
    PgQueuer("pgqueuer"),
    Awa("awa"),
    Chancy("chancy"),
    Procrastinate("procrastinate"),
    ProcrastinateSync("procrastinate-sync"),
    ChancySync("chancy-sync"),
    HueyPostgres("huey-postgres"),
    DramatiqPostgres("dramatiq-postgres"),
    CeleryPostgres("celery-postgres"),
    DjangoQPostgres("django-q-postgres"),
    DjangoTasksPostgres("django-tasks-postgres"),
    HeadraceValkey("headrace-valkey"),
    SyncValkey("headrace-valkey-sync"),
    BareValkey("bare-valkey"),
    VariadicValkey("bare-valkey-variadic"),
    MinimalValkey("minimal-valkey"),
    Dramatiq("dramatiq"),
    HueyValkey("huey-valkey"),
    Taskiq("taskiq-list", broker="list"),
    Taskiq("taskiq-stream", broker="stream"),
    Arq("arq"),
    Celery("celery"),
    Rq("rq"),
    DjangoQValkey("django-q-valkey"),
)
SYSTEMS: dict[str, System] = {system.name: system for system in _SYSTEMS}


def load(name: str) -> System:
    """The system of that name."""
    return SYSTEMS[name]
