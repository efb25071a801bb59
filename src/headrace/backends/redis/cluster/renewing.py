"""A beat of a worker whose leases may be in any shard."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.backends.redis.cluster.fleet import Fleet, attempt
from headrace.errors import Unavailable
from headrace.records import Beat, JobId, Renewed, Stamp

Lease = tuple[JobId, int]


async def renew(fleet: Fleet, beat: Beat, at: Stamp) -> Renewed:
    """All shards list the worker. A lease is lost when no shard has it, and busy while one that may have it is away."""
    asked: dict[int, list[Lease]] = {part.number: [] for part in fleet.parts}
    for lease in beat.leases:
        seen = fleet.last_seen(lease[0])
        for number in asked if seen is None else (seen,):
            asked[number].append(lease)
    found = _Found(fleet)
    await found.ask(beat, asked, at)
    missing = [lease for lease in beat.leases if lease not in found.kept]
    again = {
        number: left
        for number, named in asked.items()
        if (left := [lease for lease in missing if lease not in named]) and number not in found.away
    }
    if again:
        await found.ask(beat, again, at)
    lost = [lease for lease in missing if lease not in found.kept]
    paused = [queue for queue in beat.queues if queue in found.paused]
    if found.away:
        return Renewed((), found.cancels, paused, lost)
    return Renewed(lost, found.cancels, paused)


class _Found:
    """What the shards have said."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.kept: set[Lease] = set()
        self.cancels: list[JobId] = []
        self.paused: set[str] = set()
        self.away: set[int] = set()
        """Shards that cannot serve."""

    async def ask(self, beat: Beat, asked: dict[int, list[Lease]], at: Stamp) -> None:
        answers = await attempt(
            self._fleet.parts[number].renew(replace(beat, leases=leases), at) for number, leases in asked.items()
        )
        for (number, leases), answer in zip(asked.items(), answers, strict=True):
            if isinstance(answer, Unavailable):
                self.away.add(number)
                problem = answer
                continue
            here = set(leases) - set(answer.lost)
            self._fleet.saw((job_id for job_id, _ in here), number)
            self.kept |= here
            self.cancels += [job_id for job_id in answer.cancels if job_id not in self.cancels]
            self.paused.update(answer.paused)
        if len(self.away) == len(self._fleet.parts):
            raise problem
