"""The stores that scenarios run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
from servers.postgres import Postgres

STORES = ("sqlite", "postgres")
_SHARED_MEMORY = Path("/dev/shm")


class SqliteStore:
    """One file."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"

    def integrity(self) -> str:
        """What SQLite's own check finds."""
        return str(
            apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY).execute("pragma integrity_check").get
        )


class PostgresStore:
    """A server, as durable as PostgreSQL is by itself."""

    name = "postgres"

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.url = server.url()

    def integrity(self) -> str:
        """What PostgreSQL's own check of heaps and indexes finds."""
        return self.server.check() or "ok"


@contextmanager
def opened(name: str, folder: Path) -> Iterator[SqliteStore | PostgresStore]:
    """A new store of this kind, for one run."""
    if name == "postgres":
        with postgres(folder) as store:
            yield store
    elif name == "sqlite":
        yield SqliteStore(folder / "jobs.db")
    else:
        raise SystemExit(f"no store {name!r}; there are {' and '.join(STORES)}")


@contextmanager
def postgres(folder: Path) -> Iterator[PostgresStore]:
    """A new server, on the same disk as ``folder``; the folder itself is closed to the server's user."""
    server = Postgres(_SHARED_MEMORY if folder.is_relative_to(_SHARED_MEMORY) else None)
    try:
        server.start()
        yield PostgresStore(server)
    finally:
        server.close()
