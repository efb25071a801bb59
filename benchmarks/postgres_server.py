"""PostgreSQL for the benchmark: a server that runs throughout, and databases on it that come and go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import workload
from benchmarks.server import STORES, Kind, Server, seconds_of, starting

if TYPE_CHECKING:
    import psycopg

_PLAIN = {"shared_buffers": "128MB", "jit": "on"}
"""PostgreSQL's own defaults, where ``servers.postgres`` has others."""
TOLD = (
    "its own defaults (fsync and synchronous_commit on, shared_buffers 128MB) but max_connections 200, locale C,"
    " log_min_messages warning; a core of its own"
)
_COUNTING = _PLAIN | {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
    "track_functions": "all",
}
_KINDS: Mapping[Kind, Mapping[str, str]] = {
    "plain": _PLAIN,
    "counting": _COUNTING,
    "large": _COUNTING
    | {
        "max_connections": "3000",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "maintenance_work_mem": "512MB",
        "max_parallel_maintenance_workers": "0",
    },
    "quiet": _PLAIN | {"full_page_writes": "off", "autovacuum": "off"},
}


class PostgresServer(Server):
    """One server; every process of it is pinned to ``core``."""

    def __init__(self, kind: Kind, base: Path | None, core: int | None) -> None:
        from servers.postgres import Postgres

        with starting("PostgreSQL", base, core):
            self._postgres = Postgres(base, _KINDS[kind])
            self._postgres.start()
        self._made = 0
        self._pid = int(Path(self._postgres.directory, "data", "postmaster.pid").read_text().splitlines()[0])
        if "shared_preload_libraries" in _KINDS[kind]:
            self.ask("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    @contextmanager
    def databases(self, folder: Path) -> Iterator[str]:
        self._made += 1
        names = {store: f"{store}_{self._made}" for store in STORES}
        for store, name in names.items():
            self.ask(f"CREATE DATABASE {name}")
            (folder / f"{store}.url").write_text(self._postgres.url(name))
        try:
            yield names["queue"]
        finally:
            for name in names.values():
                self.ask(f"DROP DATABASE {name} WITH (FORCE)")

    def ask(self, query: str, parameters: Mapping[str, Any] | None = None, *, database: str = "postgres") -> list[Any]:
        """All rows of one statement."""
        with self.connect(database) as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A connection of the harness itself."""
        import psycopg

        return psycopg.connect(self._postgres.url(database), autocommit=True)

    def settle(self, database: str) -> None:
        self.ask("CHECKPOINT")

    def clear(self, database: str) -> None:
        self.ask("SELECT pg_stat_statements_reset()")
        self.ask("SELECT pg_stat_reset()", database=database)

    def workload(self, database: str, count: int) -> str:
        functions = self.ask(workload.FUNCTIONS, database=database)
        return workload.report(functions, self.ask(workload.STATEMENTS, {"name": database}), count)

    def cpu(self) -> float:
        return seconds_of(self._pid)

    def close(self) -> None:
        self._postgres.stop("immediate")
        self._postgres.close()
