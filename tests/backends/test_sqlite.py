"""The SQLite backend keeps the contract."""

from pathlib import Path

from headrace.backends.sqlite import SqliteBackend
from headrace.testing.conformance import BackendConformance


class TestSqlite(BackendConformance):
    capabilities = ("durable", "hints", "policies", "store_depth", "ticks", "finish_and_claim")

    def connect(self, place: Path) -> SqliteBackend:
        return SqliteBackend(place / "jobs.db")
