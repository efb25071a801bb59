"""How many ended jobs sweeps have removed from all shards."""

from __future__ import annotations

from headrace.backends.redis.cluster.shards import Capability, every
from headrace.seam.archive import Removal, first_hour


class ClusterRemovals(Capability):
    """See :class:`headrace.backends.archive.Removals`. Each shard counts what is removed from it."""

    async def after(self, hour: int) -> list[Removal]:
        return first_hour(await every(shard.removals.after(hour) for shard in self._shards.all))

    async def forget(self, most: int, limit: int) -> int:
        shards, gone = [shard.removals for shard in self._shards.all], 0
        over = min(limit, sum(await every(shard.count() for shard in shards)) - most)
        while gone < over:
            pages = await every(shard.after(-1) for shard in shards)
            hour = min((page[0].hour for page in pages if page), default=None)
            before = gone
            for shard, page in zip(shards, pages, strict=True):
                if page and page[0].hour == hour and gone < over:
                    gone += await shard.forget(0, min(over - gone, len(page)))
            if gone == before:
                break
        return gone
