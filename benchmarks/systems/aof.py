"""Valkey's append-only file: how many bytes were written between two instants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Aof:
    """Counts while nobody else writes and the file is not rewritten."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._before = self._memory()
        self.parts: dict[str, int] = {}
        """Bytes by the name of what wrote them."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is written meanwhile belongs to this part."""
        before = self._size()
        yield
        self.parts[name] = self._size() - before

    def relations(self) -> int:
        """Bytes of memory that the data has come to take up."""
        return self._memory() - self._before

    def vacuum(self) -> None:
        """There is nothing to clean up."""

    def _size(self) -> int:
        return int(self._client.info("persistence")["aof_current_size"])

    def _memory(self) -> int:
        return int(self._client.info("memory")["used_memory"])
