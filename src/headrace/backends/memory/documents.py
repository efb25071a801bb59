"""Documents in memory."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.memory.capability import Capability
from headrace.seam.documents import Document


class MemoryDocuments(Capability):
    """The operations of a :class:`~headrace.seam.documents.DocumentStore`."""

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        with self._store.lock:
            return [self._store.documents.get(name) for name in names]

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        with self._store.lock:
            stored = self._store.documents.get(name)
            if version != (0 if stored is None else stored.version):
                return False
            if body is None:
                self._store.documents.pop(name, None)
            else:
                self._store.documents[name] = Document(name, version + 1, body)
            return True

    async def find(self, prefix: str, after: str = "", limit: int = 100) -> list[Document]:
        with self._store.lock:
            names = sorted(name for name in self._store.documents if name.startswith(prefix) and name > after)
            return [self._store.documents[name] for name in names[:limit]]
