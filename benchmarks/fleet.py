"""The servers of a run: each is started when it is first needed, and all are gone in the end."""

from __future__ import annotations

from pathlib import Path

from benchmarks import postgres_server, valkey_server
from benchmarks.postgres_server import PostgresServer
from benchmarks.server import Kind, Server
from benchmarks.valkey_server import Aof, ValkeyServer


class Servers:
    """At most one of each kind for each store."""

    def __init__(self, base: Path | None, core: int | None, aof: Aof = "everysec") -> None:
        self._base = base
        self._core = core
        self._aof = aof
        self._postgres: dict[Kind, PostgresServer] = {}
        self._valkey: dict[Kind, ValkeyServer] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._postgres:
            self._postgres.popitem()[1].close()
        while self._valkey:
            self._valkey.popitem()[1].close()

    def postgres(self, kind: Kind = "plain") -> PostgresServer:
        """PostgreSQL of that kind. Raises ``ServerFailed``."""
        if kind not in self._postgres:
            self._postgres[kind] = PostgresServer(kind, self._base, self._core)
        return self._postgres[kind]

    def valkey(self, kind: Kind = "plain") -> ValkeyServer:
        """Valkey of that kind."""
        if kind not in self._valkey:
            self._valkey[kind] = ValkeyServer(kind, self._base, self._core, self._aof)
        return self._valkey[kind]

    def of(self, store: str, kind: Kind = "plain") -> Server:
        """The server of a store. Raises ``ServerFailed``."""
        return self.valkey(kind) if store == "valkey" else self.postgres(kind)

    def told(self, store: str) -> str:
        """How the server of a store is set up."""
        return valkey_server.told(self._aof) if store == "valkey" else postgres_server.TOLD

    def cpu(self) -> float:
        """CPU seconds used by all of them."""
        return sum(server.cpu() for server in (*self._postgres.values(), *self._valkey.values()))
