"""Jobs by the objects that they refer to, in one shard."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.redis import marshalling
from headrace.backends.redis.capability import Capability
from headrace.seam.records import JobId, Stamp
from headrace.seam.references import Referrer, Swap


class RedisReferences(Capability):
    """The operations of a :class:`~headrace.seam.references.ReferenceStore`."""

    async def find(
        self, before: int, after: tuple[int, JobId] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Referrer]:
        return [marshalling.referrer(one) for one in await self._run("referring", before, *(after or (0, b"")), limit)]

    async def swap(self, batch: Sequence[Swap], at: Stamp = None) -> list[bool]:
        return [done == 1 for done in await self._run("swap", *marshalling.swap_args(batch))] if batch else []
