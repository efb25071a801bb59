"""Documents on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.postgres.arrays import texts
from headrace.backends.postgres.capability import Capability
from headrace.seam.documents import Document


class PostgresDocuments(Capability):
    """The operations of a :class:`~headrace.seam.documents.DocumentStore`."""

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        if not names:
            return []
        found = {row[0]: Document(*row) for row in await self._call("documents", texts(list(names)))}
        return [found.get(name) for name in names]

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        [[done]] = await self._call("put_document", name, body, version)
        return bool(done)

    async def find(self, prefix: str, after: str = "", limit: int = 100) -> list[Document]:
        return [Document(*row) for row in await self._call("find_documents", prefix, after, limit)]
