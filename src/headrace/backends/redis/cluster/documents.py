"""Documents of a store with several shards: all are in the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.backends.redis.cluster.shards import Shards
from headrace.seam.documents import Document


class ClusterDocuments:
    """The operations of a :class:`~headrace.seam.documents.DocumentStore`."""

    def __init__(self, shards: Callable[[], Shards]) -> None:
        self._shards = shards

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        return await self._shards().all[0].documents.get(names)

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        return await self._shards().all[0].documents.put(name, body, version)

    async def find(self, prefix: str, after: str = "", limit: int = 100) -> list[Document]:
        return await self._shards().all[0].documents.find(prefix, after, limit)
