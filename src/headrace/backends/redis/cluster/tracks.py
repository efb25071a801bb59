"""The sheets of trackers, those of one tracker in one shard."""

from __future__ import annotations

from collections.abc import Callable

from headrace.backends.redis.cluster.shards import Shards, every
from headrace.backends.redis.tracks import RedisTracks
from headrace.seam.tracks import Tally


class ClusterTracks(RedisTracks):
    """The name of a tracker says which shard has it."""

    def __init__(self, shards: Callable[[], Shards]) -> None:
        super().__init__(lambda tracker: shards().shard_of(tracker).run)
        self._shards = shards

    async def tally(self, tracker: str | None = None) -> list[Tally]:
        if tracker is not None:
            return await super().tally(tracker)
        answers = await every(shard.tracks.tally() for shard in self._shards().all)
        return sorted((one for answer in answers for one in answer), key=lambda one: (one.tracker, one.tier))
