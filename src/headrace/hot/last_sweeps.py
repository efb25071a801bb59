"""When each hot table was last swept, and all was in order: what the store's clock is measured by."""

from __future__ import annotations

from headrace.core.documents import TypedDocument
from headrace.seam.documents import DocumentStore

_SWEPT = TypedDocument[dict[str, int]]("tables/swept", dict[str, int], {})


class LastSweeps:
    """The last sweeps, in the store. A sweep that was stopped is none."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents

    async def of(self, table: str) -> int | None:
        """When a table was last swept; None: never."""
        return (await _SWEPT.read(self._documents)).get(table)

    async def note(self, table: str, at: int) -> None:
        """A table is swept now."""
        await _SWEPT.change(self._documents, lambda old: {**old, table: at})
