"""An operator: changes jobs and queues from outside while they are worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.errors import Unavailable
from headrace.seam.policy import QueuePause
from headrace.seam.records import (
    Cancel,
    Change,
    Delete,
    Hold,
    JobKey,
    Move,
    Pause,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Selector,
)
from headrace.testing.sim.script import SECOND
from headrace.testing.sim.world import World
from headrace.types import JobState


class Operator:
    """Somebody with a dashboard and no plan."""

    def __init__(self, world: World, queues: tuple[str, ...], pause: tuple[float, float]) -> None:
        self._world = world
        self._queues = queues
        self._pause = pause
        self._node = world.node("operator")
        self._rng = world.rng("operator")
        self._backend = world.backend(self._node)
        self.task = self._node.start(self._meddle(), "operator")

    async def _meddle(self) -> None:
        while not self._world.calm:
            await asyncio.sleep(self._rng.uniform(*self._pause))
            await self._once()

    async def put_right(self) -> None:
        """Let everything that was paused go on: the queues once, and jobs whenever one pauses."""
        for queue in self._queues:
            while not await self._pause_queue(QueuePause(queue, paused=False)):
                pass
        while True:
            await self._alter(Selector(states=frozenset({JobState.PAUSED})), Resume())
            await asyncio.sleep(1)

    async def _once(self) -> None:
        rng = self._rng
        queue = rng.choice(self._queues)
        some = self._some()
        changes: list[tuple[int, Selector, Change | QueuePause]] = [
            (6, some, Cancel()),
            (3, Selector(states=frozenset({JobState.RUNNING}), limit=2), Cancel("while it runs")),
            (2, Selector(keys=[JobKey(queue, f"k{n}") for n in range(6)]), Cancel("by key")),
            (1, Selector(queue=queue, tenant="acme", limit=rng.randint(1, 5)), Cancel("by filter")),
            (2, some, Pause()),
            (2, Selector(queue=queue, limit=3), Resume()),
            (4, some, Requeue()),
            (2, Selector(states=frozenset({JobState.FAILED}), limit=3), Requeue()),
            (4, some, Move(queue)),
            (2, some, Reprioritise(rng.randint(-2, 2))),
            (2, some, Reschedule(rng.choice((0, SECOND)))),
            (2, some, Hold(rng.choice((0, SECOND, 5 * SECOND)))),
            (1, some, Delete()),
            (2, Selector(queue=queue), QueuePause(queue)),
            (3, Selector(queue=queue), QueuePause(queue, paused=False)),
        ]
        [(_, sel, change)] = rng.choices(changes, [weight for weight, _, _ in changes])
        await (self._pause_queue(change) if isinstance(change, QueuePause) else self._alter(sel, change))
        if rng.random() < 0.3:
            await self._quietly(lambda: self._backend.fetch(some.ids or (), frozenset({"result", "error", "blob"})))
        if rng.random() < 0.1:
            await self._quietly(self._backend.stats)
            await self._quietly(lambda: self._backend.scan(Selector(queue=queue), limit=10))

    def _some(self) -> Selector:
        known = self._world.known
        recent = known[-25:] if self._rng.random() < 0.7 else known
        return Selector(ids=sorted(set(self._rng.choices(recent, k=3))) if recent else [])

    async def _alter(self, sel: Selector, change: Change) -> bool:
        return await self._quietly(lambda: self._backend.alter(sel, change))

    async def _pause_queue(self, pause: QueuePause) -> bool:
        assert self._backend.policies is not None
        policies = self._backend.policies
        return await self._quietly(lambda: policies.pause(pause))

    async def _quietly(self, call: Callable[[], Awaitable[object]]) -> bool:
        """Whether the call was answered."""
        try:
            await call()
        except Unavailable:
            return False
        return True
