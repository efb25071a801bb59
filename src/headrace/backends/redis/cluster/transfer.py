"""What goes from shard to shard: jobs that move to a queue of another shard, and rows that are spawned there.

The script that settles or moves a job puts an entry with a serial into the channel from its shard, the source, to the
other one, the target. From there any process can carry it: it reads the channel, has the target take the entries in,
and has the source drop what the target has. The target skips entries that it has already, by their serials. Every step
can be repeated, be done by several processes at once, or be left undone: nothing is lost, and nothing is there twice.
What a process that died has left is carried by the next one, at the latest by a reap.

A serial is a rising number and the replication id of the server that gave it out. A replica that takes over has a new
id: it may lack the last entries, and give their numbers to others.
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
"""Seconds that a sender waits for the arrival. It may take longer, and nothing depends on it."""
Route = tuple[int, int]
"""From shard to shard."""


class Relay:
    """Carries entries."""

    def __init__(self, shards: Sequence[ClusterShard]) -> None:
        self._shards = shards
        self._busy: dict[Route, asyncio.Lock] = {}

    async def carry(self, routes: Iterable[Route], patience: float | None = PATIENCE) -> set[Route]:
        """Carry everything that is there now. A shard that is away does not hold up the others. Returns the routes on
        which all has arrived."""
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
        """Carry everything that waits in these sources for these targets."""
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
                log.error("entries from shard %d to shard %d cannot be carried yet: %s", *route, error)
                return False
            return True
