"""The server's write-ahead log: how many bytes were written between two instants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_WRITTEN = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
_RELATIONS = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""


class Log:
    """Counts while nobody else writes."""

    def __init__(self, connection: Any) -> None:
        """What there is already is cleaned up first: a store without jobs has tables and indexes too."""
        self._connection = connection
        self._connection.execute("VACUUM")
        self._before = self._ask(_RELATIONS)
        self.parts: dict[str, int] = {}
        """Bytes by the name of what wrote them."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is written meanwhile belongs to this part."""
        before = self._ask(_WRITTEN)
        yield
        self.parts[name] = self._ask(_WRITTEN) - before

    def relations(self) -> int:
        """Bytes that all tables with their indexes have come to take up."""
        return self._ask(_RELATIONS) - self._before

    def vacuum(self) -> None:
        """Clean up, as a part of its own."""
        with self.part("vacuum"):
            self._connection.execute("VACUUM")

    def _ask(self, query: str) -> int:
        [[found]] = self._connection.execute(query).fetchall()
        return int(found)
