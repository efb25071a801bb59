"""The stores that scenarios run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
from servers.postgres import Postgres
from servers.valkey import Valkey

from headrace import Streams

STORES = ("sqlite", "postgres", "valkey")
SERVERS = ("postgres", "valkey")
"""Those that are processes of their own."""
_SHARED_MEMORY = Path("/dev/shm")


class SqliteStore:
    """One file."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def integrity(self) -> str:
        """What SQLite's own check finds."""
        return str(
            apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY).execute("pragma integrity_check").get
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


class ValkeyStore:
    """A server that writes down whatever it does, and is asked for a check of that only when nobody works."""

    name = "valkey"

    def __init__(self, server: Valkey) -> None:
        self.server = server
        self.url = server.url()

    def integrity(self) -> str:
        """Whether the server, started again, makes of its file what it had in memory. What goes by itself is left
        aside: it may have gone meanwhile."""
        before = self._digests()
        self.server.stop()
        self.server.start()
        after = self._digests()
        other = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        return f"{len(other)} keys are not what they were, {other[0]!r} first" if other else "ok"

    def _digests(self) -> dict[bytes, bytes]:
        call = self.server.call
        keys = [key for key in call("KEYS", "*") if call("TTL", key) == -1]
        return dict(zip(keys, call("DEBUG", "DIGEST-VALUE", *keys), strict=True))


class StreamsStore:
    """Two servers: one keeps the jobs, the other gives them out."""

    name = "streams"

    def __init__(self, keeps: PostgresStore, gives: ValkeyStore) -> None:
        self.keeps = keeps
        self.gives = gives
        self.url = Streams(pg=keeps.url, valkey=gives.url).url

    def integrity(self) -> str:
        """What the one that keeps the jobs says."""
        return self.keeps.integrity()


Store = SqliteStore | PostgresStore | ValkeyStore | StreamsStore


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Store]:
    """A new store of this kind, for one run."""
    if name in SERVERS:
        with served(name, folder) as store:
            yield store
    elif name == "streams":
        with postgres(folder) as keeps, valkey(folder, "everysec") as gives:
            yield StreamsStore(keeps, gives)
    elif name == "sqlite":
        yield SqliteStore(folder / "jobs.db")
    else:
        raise SystemExit(f"no store {name!r}; there are {', '.join(STORES)} and streams")


@contextmanager
def served(name: str, folder: Path) -> Iterator[PostgresStore | ValkeyStore]:
    """A new store with a server of its own."""
    with postgres(folder) if name == "postgres" else valkey(folder) as store:
        yield store


@contextmanager
def postgres(folder: Path) -> Iterator[PostgresStore]:
    """A new server, on the same disk as ``folder``; the folder itself is closed to the server's user."""
    server = Postgres(_SHARED_MEMORY if folder.is_relative_to(_SHARED_MEMORY) else None)
    try:
        server.start()
        yield PostgresStore(server)
    finally:
        server.close()


@contextmanager
def valkey(folder: Path, appendfsync: str = "always") -> Iterator[ValkeyStore]:
    """A new server, on the same disk as ``folder``; its file is never rewritten."""
    settings = {"appendonly": "yes", "appendfsync": appendfsync, "auto-aof-rewrite-percentage": "0"}
    server = Valkey(folder, settings | {"enable-debug-command": "local"})
    try:
        server.start()
        yield ValkeyStore(server)
    finally:
        server.close()
