"""Where the results of visits go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol


class RowSink(Protocol):
    """Takes rows for good, such as a vault.

    >>> class Lines:
    ...     def __init__(self) -> None:
    ...         self.kept = {}
    ...     async def append(self, table, rows, *, at, name):
    ...         self.kept[table, at, name] = rows
    >>> sink: RowSink = Lines()
    """

    async def append(self, table: str, rows: Sequence[Mapping[str, Any]], *, at: datetime, name: str) -> object:
        """Store rows under the date and hour of ``at``. When this returns they are durable. A call with the same
        ``table``, ``at`` and ``name`` as an earlier one stores nothing more: so visits and sweeps that are repeated
        store nothing twice."""
