"""Hot tables: tables of the user's own, beside the jobs, whose old rows go after a while.

The conventions are those of :mod:`headrace.seam.records`. Names of tables and columns are data: a store quotes them,
and never takes a name that is not there for something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from headrace.seam.records import Stamp

TableName = tuple[str, ...]
"""A name, or a schema and a name."""


class ColumnKind(StrEnum):
    """What a column of a table that is made here holds."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"
    BOOLEAN = "boolean"
    TIME = "time"
    BYTES = "bytes"
    JSON = "json"


class TableInfo(Struct, frozen=True):
    """A table that is there."""

    columns: Mapping[str, str]
    """Names, in order, and types as the store calls them."""
    key: tuple[str, ...]
    """The columns of its primary key; none: it has none."""


class HotRule(Struct, frozen=True, kw_only=True):
    """Which rows of a table are too old."""

    table: TableName
    key: tuple[str, ...]
    age: str
    """The column that says since when a row is there. A row without it is never too old."""
    processed: str | None = None
    """The column that says whether a row has been processed: it is neither NULL nor false. None: all are."""


class Cutoff(Struct, frozen=True):
    """How old is too old."""

    processed: int
    """Rows from before this instant go, if they are processed …"""
    any: int | None = None
    """… and whether they are or not, if they are from before this one."""


class OldRow(Struct, frozen=True):
    """A row that is too old."""

    key: Any
    """The row as it was read; only the store reads this."""
    age: int
    values: Mapping[str, Any]


class Look(Struct, frozen=True):
    """What a sweep goes by."""

    condemned: int
    """Rows that are too old."""
    waiting: int
    """Rows that would be, if they were processed."""
    newest: int | None


class Survey(Struct, frozen=True):
    """A table in numbers."""

    rows: int
    bytes: int
    condemned: int
    """Rows that are too old."""
    waiting: int
    """Rows that would be, if they were processed."""
    newest: int | None
    ages: Mapping[int, int]
    """Whole days, and how many rows are that old; -1: rows without an age."""


class TableStore(Protocol):
    """The user's own tables in the same database. Nothing here touches a table of the store's own, or a table that the
    caller does not name. What holds for the ten operations holds here too."""

    async def describe(self, table: TableName) -> TableInfo | None:
        """What the table looks like; None: there is none. Raises ``ConfigError`` for a table of the store's own."""

    async def create(self, table: TableName, columns: Mapping[str, ColumnKind], key: Sequence[str], age: str) -> None:
        """Make the table, with an index of the age, unless they are there. An age that is not given is now."""

    async def prepare(self, table: TableName, age: str) -> None:
        """Give a table the column of the age, and an index of it, unless it has them. Rows that are there have none.
        Others read and write the table meanwhile, however long it takes."""

    async def backfill(self, table: TableName, age: str, source: str | None, limit: int, at: Stamp = None) -> int:
        """Give up to ``limit`` rows without an age that of the column ``source``; None: now. Returns how many. Rows
        whose source is empty stay as they are."""

    async def put(
        self, table: TableName, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]
    ) -> int:
        """Insert rows, or replace these columns of those that have the same key, all in one step."""

    async def update(
        self, table: TableName, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]
    ) -> None:
        """Replace these columns of the rows that have these keys, all in one step. Rows that are gone stay gone."""

    async def size(self, table: TableName) -> int:
        """Bytes of the table with its indexes; 0 if there is none. No row is read."""

    async def look(self, rule: HotRule, cutoff: Cutoff, limit: int) -> Look:
        """Count up to ``limit`` rows of each kind. No other row is read, but those that wait."""

    async def count(self, table: TableName, limit: int) -> int:
        """How many rows there are, up to ``limit``. No more are read."""

    async def survey(self, rule: HotRule, cutoff: Cutoff, at: Stamp = None) -> Survey:
        """Count. This reads the whole table."""

    async def oldest(self, rule: HotRule, cutoff: Cutoff, limit: int, *, values: bool) -> list[OldRow]:
        """Rows that are too old, oldest first; with their values if they are wanted."""

    async def delete(self, rule: HotRule, cutoff: Cutoff, rows: Sequence[OldRow]) -> int:
        """Delete these rows, but none that has changed since it was read, or is not too old any more."""
