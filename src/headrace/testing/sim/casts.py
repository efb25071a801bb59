"""The casts that a simulation can be played with."""

from __future__ import annotations

from headrace.testing.sim.cast.core_client import CoreProducer, CoreWaiter
from headrace.testing.sim.cast.core_worker import core_worker
from headrace.testing.sim.scenarios import SCRIPTED, Cast, draw_governed, draw_ticking

CORE = Cast(name="core", worker=core_worker, producer=CoreProducer, waiter=CoreWaiter)
"""The real worker and the real client."""
TICKS = Cast(name="ticks", worker=core_worker, producer=CoreProducer, waiter=CoreWaiter, draw=draw_ticking)
"""The same with schedules, the facade that keeps them, and planners besides those of the workers."""
RULES = Cast(name="rules", worker=core_worker, producer=CoreProducer, waiter=CoreWaiter, draw=draw_governed)
"""The same with a queue that has rules, and a governor that changes them."""
CASTS = {cast.name: cast for cast in (SCRIPTED, CORE, TICKS, RULES)}
