"""Whole jobs given away and taken in, by all shards."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from headrace.backends.redis.cluster.shards import Capability, by_shard, every
from headrace.seam.records import JobId, JobKey, Stamp
from headrace.seam.ticks import Tick
from headrace.seam.transfers import HeldKey, Parcel, Side


class ClusterTransfers(Capability):
    """The operations of a :class:`~headrace.seam.transfers.TransferStore`. A parcel stays in the shard that its job
    left. A job arrives in the shard of its queue, which also has its entry in the ledger."""

    async def open_leg(self, leg: str, at: Stamp = None) -> None:
        await every(shard.transfers.open_leg(leg, at) for shard in self._shards.all)

    async def close_leg(self, leg: str, at: Stamp = None) -> None:
        await every(shard.transfers.close_leg(leg, at) for shard in self._shards.all)

    async def depart(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> list[Parcel]:
        shards, wanted = self._shards, list(dict.fromkeys(ids))
        located = await shards.locate(wanted)
        groups = by_shard([job_id for job_id in wanted if job_id in located], located.__getitem__) or {0: []}
        answers = await every(shards.all[number].transfers.depart(leg, of, at) for number, of in groups.items())
        found = {parcel.job.id: parcel for answer in answers for parcel in answer}
        return [found[job_id] for job_id in wanted if job_id in found]

    async def parcels(
        self, leg: str, names: Sequence[JobId | JobKey] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Parcel]:
        answers = await every(shard.transfers.parcels(leg, names, limit, at) for shard in self._shards.all)
        return nsmallest(limit, (one for answer in answers for one in answer), key=lambda one: one.job.id)

    async def arrive(self, leg: str, parcels: Sequence[Parcel], at: Stamp = None) -> list[bool]:
        shards = self._shards
        known = await shards.locate([parcel.job.id for parcel in parcels])
        groups = by_shard(range(len(parcels)), lambda n: shards.number_of(parcels[n].job.queue)) or {0: []}
        answers = await every(
            shards.all[number].transfers.arrive(leg, [parcels[n] for n in of], at, known)
            for number, of in groups.items()
        )
        stored = {
            n: done
            for of, answer in zip(groups.values(), answers, strict=True)
            for n, done in zip(of, answer, strict=True)
        }
        return [stored[n] for n in range(len(parcels))]

    async def confirm(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> None:
        await every(shard.transfers.confirm(leg, ids, at) for shard in self._shards.all)

    async def ledger(self, leg: str, side: Side, after: JobId | None = None, limit: int = 1_000) -> list[JobId]:
        answers = await every(shard.transfers.ledger(leg, side, after, limit) for shard in self._shards.all)
        return nsmallest(limit, {job_id for answer in answers for job_id in answer})

    async def held_keys(self, after: JobKey | None = None, limit: int = 100, at: Stamp = None) -> list[HeldKey]:
        found: list[HeldKey] = []
        first = 0 if after is None else self._shards.number_of(after.queue)
        for shard in self._shards.all[first:]:
            if len(found) < limit:
                start = after if shard.number == first else None
                found += await shard.transfers.held_keys(start, limit - len(found), at)
        return found

    async def hold_keys(self, keys: Sequence[HeldKey], at: Stamp = None) -> None:
        groups = by_shard(keys, lambda one: self._shards.number_of(one.queue))
        await every(self._shards.all[number].transfers.hold_keys(of, at) for number, of in groups.items())

    async def add_ticks(self, uid: bytes, ticks: Sequence[Tick], at: Stamp = None) -> None:
        """In the first shard: a history is read from all."""
        await self._shards.all[0].transfers.add_ticks(uid, ticks, at)

    async def settle(self, at: Stamp = None) -> bool:
        return True
