"""The one place that knows what time it is."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Protocol

_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's monotonic clock stands still while the machine is suspended; leases do not."""


class Clock(Protocol):
    """Time for the core. Sleeping is the event loop's business; this only tells instants."""

    def now(self) -> int:
        """Microseconds since 1970 by this process's clock: for ids and for people, never for leases."""

    def stamp(self) -> int | None:
        """What to hand to the store as ``at``: None (the store's own clock) outside of tests and simulation."""

    def elapsed(self) -> float:
        """Seconds by a clock that is never set and keeps running while the machine sleeps: for the age of leases."""


class SystemClock:
    """The machine's clock; the store keeps its own."""

    def now(self) -> int:
        return time.time_ns() // 1_000

    def stamp(self) -> None:
        return None

    elapsed = staticmethod(partial(time.clock_gettime, _STEADY))
    """Without a function around it: asked for every job."""


class ManualClock:
    """A clock that stands still until it is moved, and that the store obeys too.

    >>> clock = ManualClock(1_000)
    >>> clock.advance("2s")
    >>> clock.now()
    2001000
    """

    def __init__(self, now: int = 1_800_000_000_000_000) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def stamp(self) -> int:
        return self._now

    def elapsed(self) -> float:
        return asyncio.get_running_loop().time()

    def advance(self, by: str | float) -> None:
        """Move time forward."""
        from headrace.core.durations import micros

        self._now += micros(by)
