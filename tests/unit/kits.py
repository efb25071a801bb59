"""The kit of a worker, for tests of its parts."""

from __future__ import annotations

from random import Random

from headrace.backends.memory import MemoryBackend
from headrace.core.clock import Clock, SystemClock
from headrace.core.config import PayloadSettings, Settings, WorkerSettings
from headrace.core.events import Observers
from headrace.core.ids import IdMaker
from headrace.payloads.pack import Packer
from headrace.seam.protocol import Backend
from headrace.worker.kit import Kit


def make_kit(backend: Backend | None = None, clock: Clock | None = None, *, lease: float = 10) -> Kit:
    """Of a worker on queue ``q``."""
    backend, clock, rng = backend or MemoryBackend(), clock or SystemClock(), Random(1)
    settings = Settings(worker=WorkerSettings(lease=lease, poll=60, max_lost=2, name="w"))
    packer = Packer(PayloadSettings(), backend.limits, IdMaker(clock, rng))
    return Kit(backend, ("q",), settings, packer, clock=clock, rng=rng, observers=Observers())
