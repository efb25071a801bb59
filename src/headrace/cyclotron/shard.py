"""One shard of a manager: a store, how deep it is, and whether it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from headrace.api.client import Client
from headrace.cyclotron.fields import OURS
from headrace.errors import HeadraceError, QueueFull, Unavailable
from headrace.types import NewJob

log = logging.getLogger("headrace")

_REST = 5.0
"""Seconds for which a shard that could not be opened is left alone."""


class Shard:
    """Counts what it is given between two looks at its depth, so that room for one job admits one."""

    def __init__(self, client: Client, number: int, *, depth_limit: int | None, every: float) -> None:
        self.client = client
        self.number = number
        self._limit = depth_limit
        self._every = every
        self._depth = 0
        self._looked = -1.0
        self._looking = asyncio.Lock()
        self.error: HeadraceError | None = None
        """Why it could not be opened; None: it was."""
        self._down_until = -1.0
        self.opened = False

    async def open(self, *, at_once: bool = False) -> bool:
        """Connect, unless it was found to be away a moment ago; ``at_once``: even then. Returns whether it is there."""
        if self.opened or (not at_once and asyncio.get_running_loop().time() < self._down_until):
            return self.opened
        try:
            await self.client.open()
        except HeadraceError as error:
            self.rest(error)
        else:
            self.error, self.opened = None, True
        return self.opened

    def rest(self, error: HeadraceError) -> None:
        """It is not there, or does not answer: leave it alone for a moment."""
        if self.error is None:
            log.error("shard %d is away; the others go on without it: %s", self.number, error)
        self.error, self.opened = error, False
        self._down_until = asyncio.get_running_loop().time() + _REST

    async def depth(self, *, now: bool = False) -> int:
        """How many jobs wait here, as of the last look; ``now``: look again."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if now or self._looked < 0 or loop.time() >= self._looked + self._every:
                stats = await self.client.stats()
                queues = [queue for queue in stats.queues if not queue.queue.startswith(OURS)]
                self._depth = sum(queue.available + queue.jobs_paused for queue in queues)
                self._looked = loop.time()
        return self._depth

    async def reserve(self, count: int) -> int:
        """Room for jobs: as many as asked for, or as there is room for."""
        if self._limit is None:
            return count
        await self.depth()
        room = min(count, max(0, self._limit - self._depth))
        self._depth += room
        return room

    def give_back(self, count: int) -> None:
        """So many of the reserved places were not needed."""
        self._depth -= count

    async def insert(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Store them, as one transaction. Returns those that a limit of the store itself refused."""
        try:
            if len(jobs) == 1:
                await self.client.enqueue(jobs[0])
            else:
                await self.client.insert(jobs)
        except QueueFull as full:
            refused = set(full.refused)
            left = [job for job in jobs if job.job_id in refused]
            self.give_back(len(left))
            return left
        except BaseException as error:
            self.give_back(len(jobs))
            if isinstance(error, Unavailable):
                self.rest(error)
            raise
        return []
