"""What a store in memory can do beside the ten operations."""

from __future__ import annotations

from collections.abc import Callable

from headrace.backends.memory.store import MemoryStore
from headrace.seam.records import Stamp


class Capability:
    """Something that a store in memory can do."""

    def __init__(self, store: MemoryStore, begin: Callable[[Stamp], int]) -> None:
        self._store = store
        self._begin = begin
