"""A janitor: clears away what has ended."""

from __future__ import annotations

import asyncio

from headrace.errors import Unavailable
from headrace.seam.records import SweepClause, SweepTarget
from headrace.testing.sim.world import World


class Janitor:
    """Retention, with a dry run before each run."""

    def __init__(self, world: World, keep: int) -> None:
        self._world = world
        self._keep = keep
        self._node = world.node("janitor")
        self._rng = world.rng("janitor")
        self._backend = world.backend(self._node)
        self.task = self._node.start(self._clear(), "janitor")

    async def _clear(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0.5, 3))
            target = self._rng.choice([one for one in SweepTarget if one is not SweepTarget.TICKS])
            if target is SweepTarget.TENANTS:
                await self._sweep(SweepClause(target=target))
                continue
            limit = self._rng.choice((3, 1_000))
            bound = (
                None if target in (SweepTarget.RESULTS, SweepTarget.KEYS) else self._rng.choice(("age", "age", "count"))
            )
            count = self._rng.choice((10, 60))
            for dry_run in (True, False):
                clause = SweepClause(
                    target=target,
                    older_than=self._keep if bound == "age" else None,
                    max_count=count if bound == "count" else None,
                    limit=limit,
                    dry_run=dry_run,
                )
                await self._sweep(clause)

    async def _sweep(self, clause: SweepClause) -> None:
        try:
            await self._backend.sweep(clause)
        except Unavailable:
            pass
