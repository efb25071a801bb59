"""A library that is called from code without an event loop, and of which only that is measured: to store a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gate import Gate
from benchmarks.systems.system import WARM, Answer, System


@dataclass(frozen=True)
class Caller:
    """A library at work on one store."""

    put: Callable[[], object]
    """Store one no-op job."""
    stored: Callable[[], int]
    """How many jobs the store holds."""


class BlockingPeer(System):
    """Jobs put one by one, each stored before the next; in the end the store must have them all."""

    roles = frozenset({"enqueue"})

    def caller(self, place: str) -> Caller:
        """The library, connected; it has made its tables."""
        raise NotImplementedError

    def enqueue(self, gate: Gate, place: str, count: int) -> Answer:
        """In the way that the library's own documents show."""
        caller = self.caller(place)
        for _ in range(WARM):
            caller.put()
        gate.ready()
        start = time.perf_counter()
        for _ in range(count):
            caller.put()
        answer = {"seconds": time.perf_counter() - start, **gate.used()}
        if (stored := caller.stored()) != WARM + count:
            raise RuntimeError(f"expected {WARM + count} jobs, found {stored}")
        return answer
