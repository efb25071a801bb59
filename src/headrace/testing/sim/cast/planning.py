"""The real planner in a seat of its own: a process that does nothing but plan."""

from __future__ import annotations

import asyncio

from headrace.core.config import PlannerSettings
from headrace.core.events import Observers
from headrace.schedules.planner import Planner
from headrace.testing.sim.cast.seat import Seat

PLANNER = PlannerSettings(every="2s", ahead="5s", batch=3)
"""How planners plan in simulations."""


async def planning(seat: Seat) -> None:
    """``headrace.schedules.planner.Planner`` until the seat says stop."""
    ticks = seat.backend.ticks
    if ticks is None:
        raise TypeError("a planner needs a store that keeps schedules")
    planner = Planner(ticks, seat.clock, seat.rng, Observers(), PLANNER)
    async with asyncio.TaskGroup() as group:
        duty = group.create_task(planner.run())
        await seat.stop.wait()
        duty.cancel()
