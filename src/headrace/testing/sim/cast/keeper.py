"""A keeper of schedules: makes them, and changes its mind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from headrace.api.client import Client
from headrace.core.config import Settings
from headrace.errors import ScheduleNotFound, Unavailable
from headrace.schedules.schedules import Schedules
from headrace.schedules.spec import Cron, Every
from headrace.seam.instants import to_datetime
from headrace.testing.sim.cast.planning import PLANNER
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.script import TASKS
from headrace.testing.sim.world import World
from headrace.types import NewJob


class Keeper:
    """Schedules with a bit of everything, through the real facade. All of them end: ``last`` seconds from now."""

    def __init__(
        self, world: World, count: int, queues: tuple[str, ...], pause: tuple[float, float], last: float
    ) -> None:  # fmt: skip
        self._world = world
        self._queues = queues
        self._pause = pause
        self._node = world.node("keeper")
        self._rng = world.rng("keeper")
        clock = SimClock(world.loop, node=self._node)
        self.client = Client(
            world.backend(self._node), Settings(patience=5, planner=PLANNER), clock=clock, rng=self._rng
        )
        self._schedules = Schedules(self)
        self._names = [f"schedule {n}" for n in range(count)]
        self._end = to_datetime(world.clock.now()) + timedelta(seconds=last)
        self.task = self._node.start(self._keep(), "keeper")

    async def _keep(self) -> None:
        for name in self._names:
            while not await self._quietly(lambda name=name: self._schedules.put(self._spec(name))):  # type: ignore[misc]
                pass
        while not self._world.calm:
            await asyncio.sleep(self._rng.uniform(*self._pause))
            await self._meddle()

    async def _meddle(self) -> None:
        rng, schedules = self._rng, self._schedules
        name = rng.choice(self._names)
        since = to_datetime(self._world.clock.now()) - timedelta(seconds=rng.uniform(0, 8))
        deeds: list[Callable[[], Awaitable[object]]] = [
            lambda: schedules.put(self._spec(name)),
            lambda: schedules.update(name, every=f"{rng.randint(1, 4)}s"),
            lambda: schedules.update(name, jitter=rng.choice((0, 0.2)), misfire="once", delivery="exactly_once"),
            lambda: schedules.disable(name, cancel_pending=rng.random() < 0.5),
            lambda: schedules.enable(name),
            lambda: schedules.delete(name),
            lambda: schedules.run(name),
            lambda: schedules.backfill(name, since),
            lambda: schedules.backfill(name, since),
            lambda: schedules.history(name),
            lambda: schedules.next(name),
            lambda: schedules.list(),
        ]
        await self._quietly(rng.choice(deeds))

    def _spec(self, name: str) -> Every | Cron:
        rng = self._rng
        job = NewJob(task=rng.choice(TASKS[:3]), queue=rng.choice(self._queues), tenant=rng.choice(("", "acme")))
        once = rng.random() < 0.2
        options: dict[str, Any] = {
            "name": name,
            "jitter": rng.choice((0, 0.1, 0.5)),
            "misfire": "skip" if once else rng.choice(("once", "skip", "all")),
            "max_age": f"{rng.randint(1, 8)}s",
            "grace": f"{rng.randint(1, 3)}s",
            "overlap": rng.choice(("allow", "allow", "skip", "cancel")),
            "delivery": "at_most_once" if once else "exactly_once",
            "max_runs": rng.choice((None, None, rng.randint(1, 12))),
            "end": self._end,
            "plan_priority": rng.choice((0, 0, 1)),
        }
        if rng.random() < 0.3:
            return Cron(f"*/{rng.randint(1, 5)} * * * * *", job, tz=rng.choice(("UTC", "Asia/Kolkata")), **options)
        return Every(f"{rng.randint(1, 5)}s", job, **options)

    async def _quietly(self, call: Callable[[], Awaitable[object]]) -> bool:
        """Whether the call was answered."""
        try:
            await call()
        except ScheduleNotFound:
            return True
        except Unavailable:
            return False
        return True
