"""Jobs by the objects that they refer to, in all shards."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.redis.cluster.shards import Capability, every
from headrace.seam.records import JobId, Stamp
from headrace.seam.references import Referrer, Swap


class ClusterReferences(Capability):
    """The operations of a :class:`~headrace.seam.references.ReferenceStore`. Each shard is asked, and finds its own."""

    async def find(
        self, before: int, after: tuple[int, JobId] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Referrer]:
        answers = await every(shard.references.find(before, after, limit) for shard in self._shards.all)
        found = sorted((one for answer in answers for one in answer), key=lambda one: (one.hour, one.id))
        return found[:limit]

    async def swap(self, batch: Sequence[Swap], at: Stamp = None) -> list[bool]:
        answers = await every(shard.references.swap(batch) for shard in self._shards.all)
        return [any(done) for done in zip(*answers, strict=True)]
