"""All shards of a store, and where its jobs are among them."""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import TypeVar

from headrace.backends.redis.cluster.part import Part
from headrace.backends.redis.cluster.transfer import Relay
from headrace.backends.redis.lines import Lines
from headrace.errors import Unavailable
from headrace.records import JobId, JobKey

T = TypeVar("T")
_REMEMBERED = 100_000
"""Jobs of which a process remembers the shard."""


class Fleet:
    """A queue's jobs are all in one shard, which follows from its name."""

    def __init__(self, lines: Lines, prefix: str, count: int, where: str) -> None:
        self.parts = [
            Part(lines, f"{prefix}{{{number}}}", where, number, self._away_from(number)) for number in range(count)
        ]
        self.relay = Relay(self.parts)
        self._seen: dict[JobId, int] = {}

    def _away_from(self, here: int) -> _Away:
        return _Away(self, here)

    def number_of(self, queue: str) -> int:
        """The shard of a queue."""
        return crc_hqx(queue.encode(), 0) % len(self.parts)

    def part_of(self, queue: str) -> Part:
        """The same, itself."""
        return self.parts[self.number_of(queue)]

    # -- what is remembered

    def saw(self, ids: Iterable[JobId], number: int) -> None:
        """These jobs are there."""
        seen = self._seen
        for job_id in ids:
            seen[job_id] = number
        while len(seen) > _REMEMBERED:
            del seen[next(iter(seen))]

    def last_seen(self, job_id: JobId) -> int | None:
        """The shard in which a job was, if that is remembered."""
        return self._seen.get(job_id)

    # -- what is asked for

    async def locate(self, ids: Collection[JobId]) -> dict[JobId, int]:
        """Which shard each job is in, of those that are anywhere; all are asked. One that is on its way is helped."""
        found, leaving = await self._ask_all(ids)
        if leaving:
            await self.relay.carry_from(set(leaving.values()))
            arrived, leaving = await self._ask_all(list(leaving))
            found |= leaving | arrived
        for job_id, number in found.items():
            self.saw([job_id], number)
        return found

    async def _ask_all(self, ids: Collection[JobId]) -> tuple[dict[JobId, int], dict[JobId, int]]:
        names = list(ids)
        if not names:
            return {}, {}
        found: dict[JobId, int] = {}
        leaving: dict[JobId, int] = {}
        for part, (told, _) in zip(self.parts, await every(p.locate(names, ()) for p in self.parts), strict=True):
            found.update((name, part.number) for name, kind in zip(names, told, strict=True) if kind == 1)
            leaving.update((name, part.number) for name, kind in zip(names, told, strict=True) if kind == 2)
        return found, {name: number for name, number in leaving.items() if name not in found}

    async def whereabouts(self, ids: Iterable[JobId]) -> dict[JobId, int]:
        """As far as it is remembered; the others are asked for."""
        known: dict[JobId, int] = {}
        unknown: list[JobId] = []
        for job_id in dict.fromkeys(ids):
            number = self._seen.get(job_id)
            if number is None:
                unknown.append(job_id)
            else:
                known[job_id] = number
        return known | await self.locate(unknown) if unknown else known

    async def holders(self, keys: Sequence[JobKey]) -> list[JobId]:
        """Who last took each of these keys; unknown ones are left out."""
        places: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(self.number_of(key.queue), []).append(place)
        calls = [self.parts[number].locate((), [keys[place] for place in of]) for number, of in places.items()]
        found: dict[int, JobId] = {}
        for (number, of), (_, holders) in zip(places.items(), await every(calls), strict=True):
            self.saw(filter(None, holders), number)
            found.update(zip(of, holders, strict=True))
        return [found[place] for place in range(len(keys)) if found[place]]


class _Away:
    """Of a queue: its shard, where that is not this one."""

    def __init__(self, fleet: Fleet, here: int) -> None:
        self._fleet = fleet
        self._here = here

    def __call__(self, queue: str) -> int | None:
        number = self._fleet.number_of(queue)
        return None if number == self._here else number


async def attempt(calls: Iterable[Awaitable[T]]) -> list[T | Unavailable]:
    """All answers, or why there is none."""
    answers: list[T | Unavailable] = []
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, BaseException) and not isinstance(answer, Unavailable):
            raise answer
        answers.append(answer)
    return answers


async def every(calls: Iterable[Awaitable[T]]) -> list[T]:
    """All answers; raises once all are done, if one of them cannot be had."""
    answers = await attempt(calls)
    return [checked(answer) for answer in answers]


def checked(answer: T | Unavailable) -> T:
    """The answer; raises why there is none."""
    if isinstance(answer, Unavailable):
        raise answer
    return answer
