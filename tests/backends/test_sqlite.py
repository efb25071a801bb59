"""The SQLite backend keeps the contract."""

from pathlib import Path

from headrace.backends.sqlite import SqliteBackend
from headrace.testing.conformance import BackendConformance


class TestSqlite(BackendConformance):
    capabilities = (
        "durable", "hints", "policies", "store_depth", "ticks", "references", "documents", "archive", "tracks",
        "tables", "finish_and_claim", "events", "journal", "parts", "usage", "transfers", "strict_order",
        "weighs_wanted",
    )  # fmt: skip

    def connect(self, place: Path) -> SqliteBackend:
        return SqliteBackend(place / "jobs.db")
