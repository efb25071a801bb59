"""Documents in one shard."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.redis.capability import Capability
from headrace.seam.documents import Document


class RedisDocuments(Capability):
    """The operations of a :class:`~headrace.seam.documents.DocumentStore`."""

    async def get(self, names: Sequence[str]) -> list[Document | None]:
        found = await self._run("documents", "get", *names)
        return [
            None if one is None else Document(name, int(one[0]), one[1]) for name, one in zip(names, found, strict=True)
        ]

    async def put(self, name: str, body: bytes | None, version: int) -> bool:
        return bool(await self._run("documents", "put", name, version, *(() if body is None else (body,))))

    async def find(self, prefix: str, after: str = "", limit: int = 100) -> list[Document]:
        found = await self._run("documents", "find", prefix, after, limit)
        return [Document(name.decode(), int(version), body) for name, version, body in found]
