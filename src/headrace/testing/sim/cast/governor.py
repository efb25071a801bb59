"""A governor: gives a queue its rules, and changes its mind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from msgspec.structs import replace

from headrace.errors import Unavailable
from headrace.seam.policy import Policy, QueuePause, Rate, TenantLimit
from headrace.seam.protocol import PolicyStore
from headrace.testing.sim.script import SECOND, TASKS
from headrace.testing.sim.world import World


def draw_policy(rng: Random, queue: str) -> Policy:
    """Rules under which everything can be worked off in time."""
    return Policy(
        queue=queue,
        running=rng.choice((None, None, 2, 4)),
        rate=rng.choice((None, None, Rate(SECOND // 5, 3))),
        tenant_running=rng.choice((None, 1, 2, 3)),
        tenant_rate=rng.choice((None, None, Rate(SECOND // 3, 2))),
        task_rates=rng.choice(({}, {}, {TASKS[0]: Rate(SECOND // 2)})),
        tenant_workers=rng.choice((1, 1, 2, 3)),
        tenant_batch=rng.choice((1, 2, 5)),
        ageing=rng.choice((None, None, SECOND)),
        group_running=rng.choice((1, 1, 1, 2)),
        depth=rng.choice((None, None, 12)),
    )


class Governor:
    """Somebody with a policy for one queue, and doubts."""

    def __init__(self, world: World, queue: str, tenants: tuple[str, ...], pause: tuple[float, float]) -> None:
        self._world = world
        self._queue = queue
        self._tenants = tenants
        self._pause = pause
        self._node = world.node("governor")
        self._rng = world.rng("governor")
        self._backend = world.backend(self._node)
        self.task = self._node.start(self._govern(), "governor")

    @property
    def _policies(self) -> PolicyStore:
        policies = self._backend.policies
        if policies is None:
            raise TypeError("a governor needs a store that has policies")
        return policies

    async def _govern(self) -> None:
        while not await self._quietly(self._save):
            pass
        while not self._world.calm:
            await asyncio.sleep(self._rng.uniform(*self._pause))
            await self._meddle()
        await self._put_right()

    async def _put_right(self) -> None:
        """Let everything go on that was paused."""
        for pause in (*map(self._tenant, self._tenants), *map(self._task, TASKS)):
            while not await self._quietly(partial(self._resume, pause)):
                pass

    async def _resume(self, pause: QueuePause) -> None:
        await self._policies.pause(replace(pause, paused=False, lasts=None))

    async def _meddle(self) -> None:
        rng = self._rng
        limit = TenantLimit(self._queue, rng.choice(self._tenants), rng.choice((None, 1, 3)))
        pause = rng.choice((self._tenant(rng.choice(self._tenants)), self._task(rng.choice(TASKS))))
        pause = replace(pause, lasts=rng.choice((None, SECOND, 3 * SECOND)))
        deeds: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (2, self._save),
            (1, lambda: self._policies.limit(limit)),
            (2, lambda: self._policies.pause(pause)),
            (4, lambda: self._resume(pause)),
            (3, lambda: self._policies.tenants(self._queue)),
            (1, lambda: self._policies.group(self._queue, "g")),
        ]
        [(_, deed)] = rng.choices(deeds, [weight for weight, _ in deeds])
        await self._quietly(deed)

    async def _save(self) -> None:
        known = next((one.policy.version for one in await self._policies.find([self._queue])), 0)
        await self._policies.save(replace(draw_policy(self._rng, self._queue), version=known))

    def _tenant(self, name: str) -> QueuePause:
        return QueuePause(self._queue, tenant=name)

    def _task(self, name: str) -> QueuePause:
        return QueuePause(self._queue, task=name)

    async def _quietly(self, call: Callable[[], Awaitable[object]]) -> bool:
        """Whether the call was answered."""
        try:
            await call()
        except Unavailable:
            return False
        return True
