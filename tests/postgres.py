"""One PostgreSQL server per test process, and blank stores on it."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import psycopg
from psycopg import sql
from servers.postgres import Postgres

from headrace.backends.postgres import PostgresBackend
from tests.ending import over

SCHEMA = "headrace"


def vacuum() -> None:
    """See to all tables once no other session is left: what a session did is in the server's statistics once it has
    ended. Those that other tests have left behind are ended."""
    of_others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    others = f"SELECT count(*) {of_others}"
    idle = f"SELECT pg_terminate_backend(pid) {of_others} AND state = 'idle' AND state_change < now() - interval '2 s'"
    with psycopg.connect(server().url(), autocommit=True) as connection:
        until = time.monotonic() + 60
        while connection.execute(f"{others} AND backend_type = 'client backend'").fetchone() != (0,):
            assert time.monotonic() < until, "somebody is connected"
            connection.execute(idle.encode())
        connection.execute("VACUUM (ANALYZE)")


@functools.cache
def server() -> Postgres:
    """The server of this process: in memory, and without syncs, which only a power failure would miss."""
    postgres = Postgres(root(), {"fsync": "off"})
    over.callback(postgres.close)
    postgres.start()
    return postgres


def root() -> Path | None:
    """Where servers keep their files: in memory, where the system offers that."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() else None


class Stores:
    """Each place has a store of its own, which is blank at first; only that of the last place is there."""

    def __init__(self) -> None:
        self._place: Path | None = None

    def connect(self, place: Path) -> PostgresBackend:
        """A new, unopened backend on the store that belongs to ``place``."""
        if place != self._place:
            self._place = place
            self.blank()
        return PostgresBackend(server().url(), schema=SCHEMA)

    def blank(self) -> None:
        """Forget whatever there is. A statement that a test before has given up may be under way still, and hold locks
        in another order."""
        for tries_left in reversed(range(5)):
            try:
                self._truncate()
                break
            except psycopg.errors.DeadlockDetected:
                if not tries_left:
                    raise

    def _truncate(self) -> None:
        with psycopg.connect(server().url(), autocommit=True) as connection:
            query = (
                "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r'"
                " AND c.relname NOT IN ('migrations', 'locks', 'duties', 'forgetting', 'streams')"
                " AND pg_relation_size(c.oid) > 0"
            )
            tables = [sql.Identifier(SCHEMA, name) for [name] in connection.execute(query, (SCHEMA,))]
            if tables:
                connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(tables)))
            [[there]] = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{SCHEMA}.streams",))
            if there:
                streams = sql.Identifier(SCHEMA, "streams")
                clear = "UPDATE {} SET id = gen_random_uuid(), floor = 0, server = NULL, seen_at = 0, raised_at = NULL"
                connection.execute(sql.SQL(clear).format(streams))


stores = Stores()
