"""What calls cost a store, by its own account: numbers that do not depend on what else the machine does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from benchmarks.postgres_server import PostgresServer
from benchmarks.studies.stores import Fresh
from benchmarks.valkey_server import ValkeyServer

_BLOCKS = """
    SELECT
        coalesce(sum(shared_blks_hit + shared_blks_read + local_blks_hit + local_blks_read), 0),
        coalesce(max(max_exec_time), 0)
    FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
    WHERE d.datname = %(name)s AND s.toplevel
"""
_RESET = "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = %(name)s), 0)"


class Meter(ABC):
    """Counts from ``clear`` on."""

    unit: str

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def effort(self) -> float:
        """What was done since then, in ``unit``."""

    @abstractmethod
    def slowest(self) -> float | None:
        """Milliseconds that the slowest call kept the server busy; None: there is no server."""


class Blocks(Meter):
    """PostgreSQL: pages that statements touched, whether of tables or of indexes, and however often."""

    unit = "blocks"

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._connection = server.connect()
        self._name = {"name": database}

    def clear(self) -> None:
        self._connection.execute(_RESET, self._name)

    def effort(self) -> float:
        return float(self._read()[0])

    def slowest(self) -> float:
        return float(self._read()[1])

    def _read(self) -> Any:
        return self._connection.execute(_BLOCKS, self._name).fetchone()

    def close(self) -> None:
        self._connection.close()


class Seconds(Meter):
    """Valkey: CPU time of the one thread that runs all commands."""

    unit = "µs CPU"

    def __init__(self, server: ValkeyServer, database: str) -> None:
        self._client = server.connect(database)
        self._client.config_set("slowlog-log-slower-than", 1_000)
        self._client.config_set("slowlog-max-len", 10_000)
        self._before = 0.0

    def clear(self) -> None:
        self._client.slowlog_reset()
        self._before = self._used()

    def effort(self) -> float:
        return (self._used() - self._before) * 1e6

    def slowest(self) -> float:
        return max((entry["duration"] / 1e3 for entry in self._client.slowlog_get(10_000)), default=0.0)

    def _used(self) -> float:
        used = self._client.info("cpu")
        return float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"])

    def close(self) -> None:
        self._client.close()


class Steps(Meter):
    """SQLite: steps of its virtual machine, of all connections of this process."""

    unit = "VM steps"

    def __init__(self) -> None:
        self._steps = 0
        apsw.connection_hooks.append(self._attach)

    def _attach(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count, id=self)

    def _count(self, told: dict[str, Any]) -> None:
        self._steps += told["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def clear(self) -> None:
        self._steps = 0

    def effort(self) -> float:
        return self._steps

    def slowest(self) -> None:
        return None

    def close(self) -> None:
        apsw.connection_hooks.remove(self._attach)


@contextmanager
def metered(at: Fresh) -> Iterator[Meter]:
    """The meter of a store that nobody has opened yet."""
    meter: Blocks | Seconds | Steps
    if isinstance(at.server, PostgresServer):
        meter = Blocks(at.server, at.database)
    elif isinstance(at.server, ValkeyServer):
        meter = Seconds(at.server, at.database)
    else:
        meter = Steps()
    try:
        yield meter
    finally:
        meter.close()
