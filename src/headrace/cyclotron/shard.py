"""One shard of a manager: a store, how deep it is, and whether it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from uuid import UUID

from headrace.api.client import Client
from headrace.core.walks import walk
from headrace.cyclotron.fields import OURS, JobInit, new_job
from headrace.cyclotron.stored_job import StoredJob, stored_job
from headrace.errors import QueueFull, Unavailable
from headrace.seam.records import Selector
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
        self.error: Unavailable | None = None
        """Why it could not be opened; None: it was."""
        self._down_until = -1.0
        self.opened = False

    async def open(self, *, at_once: bool = False) -> bool:
        """Connect, unless it was found to be away a moment ago; ``at_once``: even then. Returns whether it is there:
        one that was away has to answer first. Raises what does not go away by itself, such as a ``ConfigError``."""
        if self.opened or (not at_once and asyncio.get_running_loop().time() < self._down_until):
            return self.opened
        try:
            backend = await self.client.backend()
            if self.error is not None:
                await backend.now(self.client.clock.stamp())
        except Unavailable as error:
            self.rest(error)
        else:
            self.error, self.opened = None, True
        return self.opened

    def rest(self, error: Unavailable) -> None:
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

    async def ready(self, *, at_once: bool = False, now: bool = False) -> bool:
        """Whether it is there, with its depth known; ``now``: looked at now."""
        if not await self.open(at_once=at_once):
            return False
        try:
            if self._limit is not None:
                await self.depth(now=now)
        except Unavailable as error:
            self.rest(error)
            return False
        return True

    async def has(self, inits: Sequence[JobInit]) -> set[UUID]:
        """Those of these jobs that it has; none, if it is away."""
        found: set[UUID] = set()
        try:
            backend = await self.client.backend()
            known, most = [init.id for init in inits if init.id is not None], backend.limits.max_batch
            for ids in (known[i : i + most] for i in range(0, len(known), most)):
                records = await backend.fetch([one.bytes for one in ids], at=self.client.clock.stamp())
                found |= {one for one, record in zip(ids, records, strict=True) if record is not None}
        except Unavailable as error:
            self.rest(error)
        return found

    async def take(self, inits: Sequence[JobInit]) -> list[JobInit]:
        """Store what there is room for, as one batch, and note in the jobs that they were sent here. Returns those for
        which there is none."""
        room = len(inits) if self._limit is None else min(len(inits), max(0, self._limit - self._depth))
        part, left = inits[:room], list(inits[room:])
        if not part:
            return left
        self._depth += room
        noted = [init for init in part if init.shard != self.number]
        for init in noted:
            init.shard = self.number
        refused = await self._insert([new_job(init) for init in part])
        for init in noted:
            if init.id in refused:
                init.shard = None
        return [init for init in part if init.id in refused] + left

    async def _insert(self, jobs: Sequence[NewJob]) -> Collection[UUID]:
        """Returns those that a limit of the store itself refused."""
        try:
            if len(jobs) == 1:
                await self.client.enqueue(jobs[0])
            else:
                await self.client.insert(jobs)
        except QueueFull as full:
            self._depth -= len(full.refused)
            return full.refused
        except BaseException as error:
            self._depth -= len(jobs)
            if isinstance(error, Unavailable):
                self.rest(error)
            raise
        return ()

    async def scan(self, wanted: Selector, limit: int) -> list[StoredJob]:
        """Such jobs, newest first, without sections; fewer, if it is away."""
        found: list[StoredJob] = []
        try:
            async for records in walk(await self.client.backend(), wanted, self.client.clock, most=limit):
                found += [stored_job(record, self.client.packer.envelope) for record in records]
        except Unavailable as error:
            self.rest(error)
        return found
