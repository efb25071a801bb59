"""A beat of a worker whose leases may be in any shard."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from headrace.backends.redis.cluster.shards import Shards, gather
from headrace.errors import Unavailable
from headrace.seam.records import Beat, JobId, Renewed, Stamp

Lease = tuple[JobId, int]
_PART = 13
"""A shard has this fraction of a lease to answer. Twice that is less than the time between two beats."""
_LEAST = 0.4
"""Seconds that a shard has at least, however short the leases are."""


async def renew(shards: Shards, beat: Beat, at: Stamp) -> Renewed:
    """Every shard lists the worker, because it needs beats in a shard before it may reap there; the shards that have
    its leases renew them. A lease is lost if no shard has it, and busy while a shard that may have it is away or late.
    The beat does not wait for such a shard: the leases in the others would run out."""
    everywhere = range(len(shards.all))
    asked: dict[int, list[Lease]] = {number: [] for number in everywhere}
    for lease in beat.leases:
        seen = shards.last_seen(lease[0])
        for number in everywhere if seen is None else (seen,):
            asked[number].append(lease)
    found = _Found(shards)
    await found.ask(beat, asked, at)
    missing = [
        lease for lease in beat.leases if lease not in found.kept and shards.leased_in(*lease) not in found.there
    ]
    again = {
        number: left
        for number in everywhere
        if (left := [lease for lease in missing if lease not in asked[number]]) and number not in found.away
    }
    if again:
        await found.ask(beat, again, at)
    gone = [lease for lease in beat.leases if lease not in found.kept]
    lost = [lease for lease in gone if not found.away or shards.leased_in(*lease) in found.there]
    paused = [queue for queue in beat.queues if queue in found.paused]
    busy = [lease for lease in gone if lease not in lost]
    return Renewed(lost, found.cancels, paused, busy, list(found.held), found.overdue, bool(found.away))


class _Found:
    """The answers of the shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.kept: set[Lease] = set()
        self.cancels: list[JobId] = []
        self.held: dict[tuple[JobId, int, bool], None] = {}
        self.overdue = False
        self.paused: set[str] = set()
        self.there: set[int] = set()
        """Shards that have answered."""
        self.away: set[int] = set()
        """Shards that are away."""

    async def ask(self, beat: Beat, asked: dict[int, list[Lease]], at: Stamp) -> None:
        answers, problem = await gather(
            {number: self._renew(number, replace(beat, leases=leases), at) for number, leases in asked.items()}
        )
        self.there |= answers.keys()
        self.away |= asked.keys() - answers.keys()
        for number, answer in answers.items():
            here = set(asked[number]) - set(answer.lost)
            self._shards.saw((job_id for job_id, _ in here), number)
            self.kept |= here
            self.cancels += [job_id for job_id in answer.cancels if job_id not in self.cancels]
            self.paused.update(answer.paused)
            self.held |= dict.fromkeys(answer.held)
            self.overdue |= answer.overdue
        if problem is not None and not self.there:
            raise problem

    async def _renew(self, number: int, beat: Beat, at: Stamp) -> Renewed:
        limit = max(_LEAST, beat.lease_for / 1e6 / _PART)
        try:
            async with asyncio.timeout(limit):
                return await self._shards.all[number].renew(beat, at)
        except TimeoutError:
            raise Unavailable(
                f"{self._shards.where} cannot serve just now: no answer from shard {number} in {limit:.2g} s"
            ) from None
