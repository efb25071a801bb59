"""PostgreSQL for the benchmark: a server on a core of its own, and fresh databases on it for every measurement."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.machine import on_core

if TYPE_CHECKING:
    import psycopg

Kind = Literal["plain", "counting", "quiet"]

_PLAIN = {"shared_buffers": "128MB", "jit": "on"}
"""PostgreSQL's own defaults, where ``servers.postgres`` has others."""
TOLD = (
    "its own defaults (fsync and synchronous_commit on, shared_buffers 128MB) but max_connections 200, locale C,"
    " log_min_messages warning; a core of its own"
)
_KINDS: Mapping[Kind, Mapping[str, str]] = {
    "plain": _PLAIN,
    "counting": _PLAIN
    | {
        "shared_preload_libraries": "pg_stat_statements",
        "pg_stat_statements.track": "all",
        "track_functions": "all",
    },
    "quiet": _PLAIN | {"full_page_writes": "off", "autovacuum": "off"},
}
"""``plain`` for everything that takes time; ``counting`` where statements and functions are counted; ``quiet`` where
bytes of its log are, which full pages and autovacuum would blur."""

STORES = ("queue", "warm")
"""The databases of a measurement: the one that is measured, and one to warm up on."""


class ServerFailed(Exception):
    """A server did not start; the text says why."""


class Server:
    """One server, started on first use; every process of it is pinned to ``core``."""

    def __init__(self, kind: Kind, base: Path | None, core: int | None) -> None:
        from servers.postgres import Postgres

        self._postgres = Postgres(base, _KINDS[kind])
        with on_core(core):
            self._postgres.start()
        self._made = 0
        self._pid = int(Path(self._postgres.directory, "data", "postmaster.pid").read_text().splitlines()[0])
        if kind == "counting":
            self.ask("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    @contextmanager
    def databases(self, folder: Path) -> Iterator[str]:
        """Fresh databases, whose addresses lie in ``folder`` as ``queue.url`` and ``warm.url``; dropped afterwards.
        Yields the name of the first."""
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

    def close(self) -> None:
        """Stop it, and remove all that it has."""
        self._postgres.stop("immediate")
        self._postgres.close()

    def cpu(self) -> float:
        """CPU seconds that all its processes, the ended ones too, have used so far."""
        return sum(_seconds(int(pid), self._pid) for pid in os.listdir("/proc") if pid.isdigit())


class Servers:
    """At most one server of each kind; all are gone in the end."""

    def __init__(self, base: Path | None, core: int | None) -> None:
        self._base = base
        self._core = core
        self._running: dict[Kind, Server] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._running:
            self._running.popitem()[1].close()

    def get(self, kind: Kind = "plain") -> Server:
        """The server of that kind. Raises ``ServerFailed``."""
        if kind not in self._running:
            try:
                self._running[kind] = Server(kind, self._base, self._core)
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                raise ServerFailed(
                    f"PostgreSQL did not start in {self._base or 'the temporary directory'}: {error}"
                ) from error
        return self._running[kind]

    def cpu(self) -> float:
        """CPU seconds used by all of them."""
        return sum(server.cpu() for server in self._running.values())


def _seconds(pid: int, server: int) -> float:
    """What a process of the server has used; those that have ended are on the account of the one that started them."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    parent, used, of_ended = int(fields[1]), fields[11:13], fields[13:15]
    if server not in (pid, parent):
        return 0.0
    return sum(map(int, used + of_ended if pid == server else used)) / os.sysconf("SC_CLK_TCK")
