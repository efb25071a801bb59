"""Protected tables: their names are in the store, and no rule of any process deletes their rows."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.documents import TypedDocument
from headrace.errors import ConfigError
from headrace.seam.documents import DocumentStore
from headrace.seam.tables import TableName
from headrace.text import shown

_PROTECTED = TypedDocument[list[TableName]]("tables/protected", list[TableName], [])


class Protection:
    """The names of protected tables. Some databases do not tell capitals from small letters in names, and a name alone
    is one in ``public``: names that may mean the same table count as the same.

    >>> Protection.same(("public", "Videos")) == Protection.same(("videos",))
    True
    """

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents

    @staticmethod
    def same(table: TableName) -> TableName:
        """What all names of one table have in common."""
        parts = tuple(part.casefold() for part in table)
        return parts[1:] if len(parts) == 2 and parts[0] == "public" else parts

    async def names(self) -> list[TableName]:
        """All of them, as they were given."""
        return await _PROTECTED.read(self._documents)

    async def has(self, table: TableName) -> bool:
        """Whether it is one of them."""
        return self.same(table) in map(self.same, await self.names())

    async def check(self, table: TableName) -> None:
        """Raise ``ConfigError`` if it is one of them."""
        if await self.has(table):
            raise ConfigError(
                f"table {shown('.'.join(table))} is protected in the store: no row of it is deleted. If that is no "
                f"longer right: headrace table unprotect {'.'.join(table)}"
            )

    async def add(self, tables: Iterable[TableName]) -> None:
        """Protect these from now on."""
        given = [*tables]
        await _PROTECTED.change(self._documents, lambda old: sorted({*old, *given}))

    async def remove(self, table: TableName) -> bool:
        """Protect it no longer; whether it was."""
        was = await self.has(table)
        left = self.same(table)
        await _PROTECTED.change(self._documents, lambda old: [one for one in old if self.same(one) != left])
        return was
