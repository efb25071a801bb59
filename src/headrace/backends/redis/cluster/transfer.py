"""What goes from shard to shard: jobs that move to another shard's queue, and rows that are spawned there.

In the script that settles or moves the job, the source puts an entry with a number into its channel to the target. From
there anybody carries it: reads the channel (1), has the target take the entries in (2), which passes over those that it
has, by their numbers, and tells the source what the target has (3), which drops that. Each step can be repeated, by
several at once, and left undone: nothing is lost, nothing is there twice. What a carrier that died has left is carried
by the next one, at the latest by a reap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from headrace.backends.redis.cluster.part import Part
from headrace.errors import Unavailable

Route = tuple[int, int]
"""From shard to shard."""


class Relay:
    """Carries entries."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._busy: dict[Route, asyncio.Lock] = {}

    async def carry(self, routes: Iterable[Route]) -> set[Route]:
        """Carry all that is there now. A shard that cannot serve keeps nobody from going on; the routes where all has
        arrived."""
        todo = list(dict.fromkeys(routes))
        done = await asyncio.gather(*(self._carry(route) for route in todo))
        return {route for route, arrived in zip(todo, done, strict=True) if arrived}

    async def carry_from(self, sources: Collection[int]) -> None:
        """All that waits in these shards."""
        for source in sources:
            try:
                found = await self._parts[source].overdue(0, None)
            except Unavailable:
                continue
            await self.carry((source, target) for target in found.targets)

    async def _carry(self, route: Route) -> bool:
        source, target = (self._parts[number] for number in route)
        async with self._busy.setdefault(route, asyncio.Lock()):
            try:
                upto = 0
                while entries := await source.outbox(target.number, upto):
                    upto = await target.receive(source.number, entries)
            except Unavailable:
                return False
            return True
