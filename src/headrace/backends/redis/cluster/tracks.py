"""The sheets of trackers, those of one tracker in one shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.backends.redis.cluster.shards import Shards, every
from headrace.backends.redis.tracks import RedisTracks
from headrace.seam.records import Stamp
from headrace.seam.tracks import Check, Erase, Sheets, Tally, Write


class ClusterTracks:
    """The operations of a :class:`~headrace.seam.tracks.TrackStore`. The name of a tracker says which shard has it."""

    def __init__(self, shards: Callable[[], Shards]) -> None:
        self._shards = shards

    def _of(self, tracker: str) -> RedisTracks:
        return self._shards().shard_of(tracker).tracks

    async def read(self, tracker: str, points: Sequence[tuple[str, int]], at: Stamp = None) -> Sheets:
        return await self._of(tracker).read(tracker, points, at)

    async def walk(self, tracker: str, tier: str, start: int, limit: int = 100, at: Stamp = None) -> Sheets:
        return await self._of(tracker).walk(tracker, tier, start, limit, at)

    async def write(self, tracker: str, batch: Sequence[Write | Check | Erase], at: Stamp = None) -> bool:
        return await self._of(tracker).write(tracker, batch, at)

    async def due(self, tracker: str, limit: int, hold: int, at: Stamp = None) -> Sheets:
        return await self._of(tracker).due(tracker, limit, hold, at)

    async def tally(self, tracker: str | None = None) -> list[Tally]:
        if tracker is not None:
            return await self._of(tracker).tally(tracker)
        answers = await every(shard.tracks.tally() for shard in self._shards().all)
        return sorted((one for answer in answers for one in answer), key=lambda one: (one.tracker, one.tier))
