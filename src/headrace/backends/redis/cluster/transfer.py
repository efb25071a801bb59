"""What goes from shard to shard: jobs that move to another shard's queue, and rows that are spawned there.

In the script that settles or moves the job, the source puts an entry with a mark into its channel to the target. From
there anybody carries it: reads the channel (1), has the target take the entries in (2), which passes over those that it
has, by their marks, and tells the source what the target has (3), which drops that. Each step can be repeated, by
several at once, and left undone: nothing is lost, nothing is there twice. What a carrier that died has left is carried
by the next one, at the latest by a reap.

A mark is a number that rises, and the name of the history of which the server is part that gave it out. A replica that
takes over begins another history: it may lack the last entries, and give the same numbers to others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from headrace.backends.redis.cluster.shard import ClusterShard
from headrace.errors import BackendError, Unavailable
from headrace.seam.records import Reap

log = logging.getLogger("headrace")
PATIENCE = 1.0
"""Seconds that whoever sent something waits for its arrival; it may take longer, and nothing depends on it."""
Route = tuple[int, int]
"""From shard to shard."""


class Relay:
    """Carries entries."""

    def __init__(self, shards: Sequence[ClusterShard]) -> None:
        self._shards = shards
        self._busy: dict[Route, asyncio.Lock] = {}

    async def carry(self, routes: Iterable[Route], patience: float | None = PATIENCE) -> set[Route]:
        """Carry all that is there now. A shard that cannot serve keeps nobody from going on; the routes where all has
        arrived."""
        tasks = {asyncio.ensure_future(self._carry(route)): route for route in routes if route[0] != route[1]}
        if not tasks:
            return set()
        try:
            done, _ = await asyncio.wait(tasks, timeout=patience)
        finally:
            for task in tasks:
                task.cancel()
        return {tasks[task] for task in done if task.result()}

    async def carry_waiting(self, sources: Collection[int], targets: Collection[int]) -> None:
        """All that waits in some shards for some shards."""
        found = await asyncio.gather(*(self._waiting(source) for source in sources))
        await self.carry(route for routes in found for route in routes if route[1] in targets)

    async def _waiting(self, source: int) -> list[Route]:
        try:
            return [(source, target) for target in (await self._shards[source].overdue(Reap(limit=0), None)).targets]
        except Unavailable:
            return []

    async def _carry(self, route: Route) -> bool:
        source, target = (self._shards[number] for number in route)
        async with self._busy.setdefault(route, asyncio.Lock()):
            try:
                upto = b""
                while entries := await source.outbox(target.number, upto):
                    upto = await target.receive(source.number, entries)
            except Unavailable:
                return False
            except BackendError as error:
                log.error("what goes from shard %d to shard %d waits: %s", *route, error)
                return False
            return True
