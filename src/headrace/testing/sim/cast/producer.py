"""Producers: enqueue alone or in bulk, and repeat what they got no answer to."""

from __future__ import annotations

import asyncio
from random import Random

from msgspec import Struct

from headrace.errors import Unavailable
from headrace.seam.records import Inserted, JobId, Replaces, Row
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.rules.clients import ONCE
from headrace.testing.sim.script import SECOND, TASKS, wrapped
from headrace.testing.sim.world import World, make_id
from headrace.types import SECTIONS


class Load(Struct, frozen=True, kw_only=True):
    """What producers ask for."""

    queues: tuple[str, ...] = ("a", "b", "c")
    requests: int = 20
    """Per producer."""
    pause: tuple[int, int] = (20_000, 1_000_000)
    bulk: float = 0.3
    keyed: float = 0.35
    delayed: float = 0.3
    expiring: float = 0.12
    tenants: tuple[str, ...] = ("", "acme", "umbrella")
    """A tenant that is named more often asks for more."""
    grouped: float = 0.0
    again: float = 0.06
    """Enqueue a job again whose id is known already, with another payload."""


class Producer:
    """One client process that enqueues."""

    def __init__(self, world: World, name: str, load: Load) -> None:
        self._world = world
        self._load = load
        self._name = name
        self._node = world.node(name)
        self._rng = world.rng(name)
        self._clock = SimClock(world.loop, node=self._node)
        self._backend = world.backend(self._node)
        self._requests = 0
        self.task = self._node.start(self._produce(), name)

    async def _produce(self) -> None:
        rng, load = self._rng, self._load
        for _ in range(load.requests):
            await asyncio.sleep(rng.randint(*load.pause) / 1e6)
            rows = [self.row() for _ in range(rng.randint(2, 8) if rng.random() < load.bulk else 1)]
            await self.enqueue(rows)

    async def enqueue(self, rows: list[Row]) -> list[Inserted] | None:
        """Insert, and repeat the very same insert while there is no answer; None when it is given up."""
        self._world.known += [row.id for row in rows]
        for _ in range(8):
            try:
                return await self._backend.insert(rows)
            except Unavailable:
                await asyncio.sleep(self._rng.uniform(0.05, 0.6))
        return None

    def row(self) -> Row:
        """A job to ask for."""
        rng, load = self._rng, self._load
        self._requests += 1
        job_id = make_id(self._clock, rng)
        if self._world.known and rng.random() < load.again:
            job_id = rng.choice(self._world.known)
        return draw_row(rng, load, job_id, ONCE + f"{self._name}/{self._requests}".encode())


def draw_row(rng: Random, load: Load, job_id: JobId, headers: bytes | None = None) -> Row:
    """A job with a bit of everything."""
    late = rng.random() < load.delayed
    key = f"k{rng.randrange(6)}" if rng.random() < load.keyed else None
    return Row(
        job_id,
        rng.choice(load.queues),
        rng.choice(TASKS[:3]),
        {name: wrapped(rng.randbytes(rng.randint(0, 12))) for name in SECTIONS if rng.random() < 0.5},
        tenant=rng.choice(load.tenants),
        key=key,
        priority=rng.choice((0, 0, 0, -1, 1, 2)),
        delay=rng.randint(0, 4 * SECOND) if late else 0,
        expires=rng.randint(SECOND // 2, 6 * SECOND) if rng.random() < load.expiring else None,
        max_attempts=rng.choice((None, 1, 2, 3)),
        timeout=rng.choice((None, 10 * SECOND)),
        result_ttl=rng.choice((None, SECOND)),
        headers=headers,
        hold_failed=rng.random() < 0.2,
        replaces=Replaces.NOTHING if key is None else rng.choice((Replaces.NOTHING, *Replaces)),
        group=rng.choice(("g", "h")) if load.grouped and rng.random() < load.grouped else None,
    )
