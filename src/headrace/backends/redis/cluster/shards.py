"""All shards of a store, and in which of them its jobs are."""

from __future__ import annotations

import asyncio
import functools
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.backends.redis.cluster.shard import HERE, LEAVING, UNKNOWN, ClusterShard
from headrace.backends.redis.cluster.transfer import Relay
from headrace.backends.redis.connections import SLOTS, Connections, slot_of
from headrace.backends.redis.marshalling import Away
from headrace.errors import Unavailable
from headrace.seam.records import JobId, JobKey, Leased

K = TypeVar("K")
T = TypeVar("T")
_REMEMBERED = 100_000
"""How many jobs' shards a process remembers."""
_REFUSED = 20_000
"""How many jobs that found no room a process remembers."""
_LEASES = 10_000
"""How many of its own leases a process remembers."""
_ROUNDS = 10
"""How often all shards are asked for a job that keeps moving."""


@functools.cache
def tags(count: int) -> tuple[str, ...]:
    """The hash tag of each shard. The slot of shard i of N is in the i-th N-th of all slots, so primaries with equal
    parts of the slots have equal numbers of shards.

    >>> [slot_of(f"{{{tag}}}") * 4 // SLOTS for tag in tags(4)]
    [0, 1, 2, 3]
    """
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        found.setdefault(slot_of(f"{{{number}}}") * count // SLOTS, str(number))
        number += 1
    return tuple(found[shard] for shard in range(count))


class Shards:
    """All shards. The jobs of a queue are in one of them, which follows from its name."""

    def __init__(self, connections: Connections, prefix: str, count: int, where: str) -> None:
        self.all = [
            ClusterShard(connections, f"{prefix}{{{tag}}}", where, number, self._away_from(number))
            for number, tag in enumerate(tags(count))
        ]
        self.relay = Relay(self.all)
        self.where = where
        self._seen: dict[JobId, int] = {}
        self._leased: dict[JobId, tuple[int, int]] = {}
        self._refused: dict[JobId, int] = {}

    def _away_from(self, here: int) -> Away:
        def away(queue: str) -> int | None:
            number = self.number_of(queue)
            return None if number == here else number

        return away

    def number_of(self, queue: str) -> int:
        """The number of a queue's shard."""
        return crc_hqx(queue.encode(), 0) % len(self.all)

    def shard_of(self, queue: str) -> ClusterShard:
        """The shard of a queue."""
        return self.all[self.number_of(queue)]

    # -- what is remembered

    def saw(self, ids: Iterable[JobId], number: int) -> None:
        """These jobs were seen in this shard."""
        seen = self._seen
        for job_id in ids:
            seen[job_id] = number
        shorten(seen)

    def last_seen(self, job_id: JobId) -> int | None:
        """The shard in which the job was seen last, if it is remembered."""
        return self._seen.get(job_id)

    def refused(self, jobs: Iterable[tuple[JobId, int]]) -> None:
        """These jobs found no room in these shards. For each job the first shard is remembered: a repeated enqueue asks
        that one."""
        for job_id, number in jobs:
            self._refused.setdefault(job_id, number)
        shorten(self._refused, _REFUSED)

    def admitted(self, ids: Iterable[JobId]) -> None:
        """These jobs are stored."""
        if self._refused:
            for job_id in ids:
                self._refused.pop(job_id, None)

    def refused_in(self, job_id: JobId) -> int | None:
        """The shard in which the job found no room, if it is remembered."""
        return self._refused.get(job_id) if self._refused else None

    def leased(self, jobs: Iterable[Leased], number: int) -> None:
        """This process has claimed these jobs in this shard."""
        for job in jobs:
            self._seen[job.id] = number
            self._leased[job.id] = (job.epoch, number)
        shorten(self._seen)
        shorten(self._leased, _LEASES)

    def leased_in(self, job_id: JobId, epoch: int) -> int | None:
        """The shard in which this process got this lease. A running job does not leave its shard, so that shard alone
        knows about the lease."""
        known, number = self._leased.get(job_id, (epoch, None))
        return number if known == epoch else None

    # -- what is asked for

    async def locate(self, ids: Collection[JobId]) -> dict[JobId, int]:
        """Ask all shards which of them has each job. Jobs that are on their way are carried first.

        A job that moves while the shards are asked may be overlooked, but then it has left a trace. So all are asked
        again until there are no new traces; raises ``Unavailable`` if that does not end.
        """
        if not ids:
            return {}
        found: dict[JobId, int] = {}
        missing = set(ids)
        traces: dict[JobId, set[tuple[int, int]]] | None = None
        for _ in range(_ROUNDS):
            here, leaving, left = await self._ask_all(missing)
            if leaving:
                await self.relay.carry_waiting(set(leaving.values()), range(len(self.all)))
                here, leaving, left = await self._ask_all(missing)
                here = leaving | here
            found |= here
            missing = left.keys() - here.keys()
            left = {name: left[name] for name in missing}
            if not missing or left == traces:
                break
            traces = left
        else:
            raise Unavailable(f"{self.where} cannot serve just now: {len(missing)} jobs keep moving between queues")
        for job_id, number in found.items():
            self.saw([job_id], number)
        return found

    async def _ask_all(
        self, ids: Collection[JobId]
    ) -> tuple[dict[JobId, int], dict[JobId, int], dict[JobId, set[tuple[int, int]]]]:
        """Ask all shards: which jobs they have, which are leaving them, and which have left them and when."""
        names = list(ids)
        found: dict[JobId, int] = {}
        leaving: dict[JobId, int] = {}
        left: dict[JobId, set[tuple[int, int]]] = {}
        answers, problem = await gather({shard.number: shard.locate(names, ()) for shard in self.all})
        for number, (codes, _) in answers.items():
            for name, code in zip(names, codes, strict=True):
                if code == HERE:
                    found[name] = number
                elif code == LEAVING:
                    leaving[name] = number
                elif code != UNKNOWN:
                    left.setdefault(name, set()).add((number, code))
        if problem is not None and len(found) < len(names):
            raise problem
        return found, {name: number for name, number in leaving.items() if name not in found}, left

    async def whereabouts(self, ids: Iterable[JobId]) -> dict[JobId, int]:
        """The shards of these jobs: remembered ones, and the others after asking."""
        known: dict[JobId, int] = {}
        unknown: list[JobId] = []
        for job_id in dict.fromkeys(ids):
            number = self._seen.get(job_id)
            if number is None:
                unknown.append(job_id)
            else:
                known[job_id] = number
        return known | await self.locate(unknown) if unknown else known

    async def jobs_of(self, keys: Sequence[JobKey]) -> list[JobId]:
        """The jobs that last took these keys; unknown keys are left out."""
        found = await self._jobs_of(keys)
        if missing := [key for key in keys if key not in found]:
            await self.bring(missing)
            found |= await self._jobs_of(missing)
        return [found[key] for key in keys if key in found]

    async def _jobs_of(self, keys: Sequence[JobKey]) -> dict[JobKey, JobId]:
        groups = by_shard(keys, lambda key: self.number_of(key.queue))
        calls = [self.all[number].locate((), of) for number, of in groups.items()]
        found: dict[JobKey, JobId] = {}
        for (number, of), (_, ids) in zip(groups.items(), await every(calls), strict=True):
            self.saw(filter(None, ids), number)
            found.update((key, job_id) for key, job_id in zip(of, ids, strict=True) if job_id)
        return found

    async def bring(self, keys: Iterable[JobKey]) -> None:
        """Carry whatever is on its way to the queues of these keys: a job takes its key when it arrives."""
        await self.relay.carry_waiting(range(len(self.all)), {self.number_of(key.queue) for key in keys})


class Capability:
    """Something that the shards can do together beside the ten operations."""

    def __init__(self, shards: Callable[[], Shards]) -> None:
        self._open_shards = shards

    @property
    def _shards(self) -> Shards:
        return self._open_shards()


def by_shard(items: Iterable[T], number_of: Callable[[T], int]) -> dict[int, list[T]]:
    """Items by the number of their shard, in their order."""
    groups: dict[int, list[T]] = {}
    for item in items:
        groups.setdefault(number_of(item), []).append(item)
    return groups


def shorten(remembered: dict[Any, Any], most: int = _REMEMBERED) -> None:
    """Forget the oldest entries."""
    while len(remembered) > most:
        del remembered[next(iter(remembered))]


async def gather(calls: Mapping[K, Awaitable[T]]) -> tuple[dict[K, T], Unavailable | None]:
    """The answers that came, by the keys of their calls; and the first reason why one did not."""
    answers: dict[K, T] = {}
    problem: Unavailable | None = None
    for key, answer in zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True):
        if isinstance(answer, Unavailable):
            problem = problem or answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[key] = answer
    return answers, problem


async def every(calls: Iterable[Awaitable[T]]) -> list[T]:
    """All answers; if one is missing, raises once all calls are done."""
    answers, problem = await gather(dict(enumerate(calls)))
    if problem is not None:
        raise problem
    return list(answers.values())
