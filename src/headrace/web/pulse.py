"""The pulse of an event loop, felt from another thread: whether it turns, and how late."""

from __future__ import annotations

import asyncio
import time

from headrace.core.histogram import Histogram

_EVERY = 0.25
STILL = 3.0
"""Seconds without a beat after which the loop counts as blocked."""


class Pulse:
    """Beats four times a second on the loop that it was started on."""

    def __init__(self) -> None:
        self.lag = Histogram()
        """How much later than planned each beat came, in seconds."""
        self._beat = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._planned = 0.0

    def start(self) -> None:
        """Called on the loop."""
        self._beat = time.monotonic()
        self._plan()

    def stop(self) -> None:
        """Called on the loop."""
        if self._timer is not None:
            self._timer.cancel()

    def still_for(self) -> float:
        """Seconds since the last beat. Callable from any thread."""
        return time.monotonic() - self._beat

    def _plan(self) -> None:
        self._planned = time.monotonic() + _EVERY
        self._timer = asyncio.get_running_loop().call_later(_EVERY, self._feel)

    def _feel(self) -> None:
        self._beat = time.monotonic()
        self.lag.add(max(0.0, self._beat - self._planned))
        self._plan()
