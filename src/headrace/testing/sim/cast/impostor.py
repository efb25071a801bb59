"""An impostor: knows every job's id and epoch, and tries to write without holding a lease."""

from __future__ import annotations

import asyncio

from headrace.errors import Unavailable
from headrace.seam.records import Beat, Settlement
from headrace.testing.sim.script import SECOND, Script
from headrace.testing.sim.world import World
from headrace.types import JobState


class Impostor:
    """A process that got hold of ids, as a stale worker or a curious reader of the dashboard might."""

    def __init__(self, world: World, pause: tuple[float, float]) -> None:
        self._world = world
        self._pause = pause
        self._node = world.node("impostor")
        self._rng = world.rng("impostor")
        self._script = Script(seed=f"{world.seed}:impostor", spawn=1.0)
        self._backend = world.backend(self._node)
        self.task = self._node.start(self._try_it(), "impostor")

    async def _try_it(self) -> None:
        while not self._world.calm:
            await asyncio.sleep(self._rng.uniform(*self._pause))
            try:
                await self._once()
            except Unavailable:
                pass

    async def _once(self) -> None:
        recent = self._world.known[-20:]
        records = await self._backend.fetch(self._rng.choices(recent, k=4)) if recent else []
        leases = [(record.id, record.epoch) for record in records if record is not None]
        if not leases:
            return
        await self._backend.renew(Beat("impostor", "impostor", (), 60 * SECOND, leases, ttl=SECOND))
        job_id, epoch = self._rng.choice(leases)
        act = self._script.act(job_id, epoch)
        state = self._rng.choice((JobState.COMPLETED, JobState.FAILED, JobState.AVAILABLE))
        forged = Settlement(job_id, epoch, "impostor", state, result=b"forged", result_ttl=SECOND, spawn=act.spawn)
        await self._backend.finish([forged])
