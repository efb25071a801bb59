"""The casts that a simulation can be played with."""

from __future__ import annotations

from headrace.testing.sim.cast.core_client import CoreProducer, CoreWaiter
from headrace.testing.sim.cast.core_worker import core_worker
from headrace.testing.sim.scenarios import SCRIPTED, Cast

CORE = Cast(name="core", worker=core_worker, producer=CoreProducer, waiter=CoreWaiter)
"""The real worker and the real client."""
CASTS = {cast.name: cast for cast in (SCRIPTED, CORE)}
