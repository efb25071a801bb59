"""Tells observers that the store is away, and that it is back: once each."""

from __future__ import annotations

import asyncio
import math

from headrace.core.events import Event, EventKind, Observers
from headrace.errors import StoreFull


class Outage:
    """When the store last answered a trip of this worker, and whether it is away. All ``Trips`` share it."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._on = False
        self.answered = -math.inf
        """When a trip last got through, by the loop's clock."""
        self.settled = -math.inf
        """When a trip with settlements last got through."""
        self.out_of_room = asyncio.Event()
        """Set when the store had no room for something."""

    @property
    def ever_answered(self) -> bool:
        return self.answered > -math.inf

    def begins(self, error: Exception) -> None:
        """A trip failed."""
        self.failed(error)
        if not self._on:
            self._on = True
            self._observers.tell(Event(EventKind.STORE_AWAY, error=error, detail=str(error)))

    def failed(self, error: Exception) -> None:
        """Something else failed that a worker did."""
        if isinstance(error, StoreFull):
            self.out_of_room.set()

    def ends(self, *, settled: bool) -> None:
        """A trip got through. ``settled``: it carried settlements."""
        self.answered = asyncio.get_running_loop().time()
        if settled:
            self.settled = self.answered
        if self._on:
            self._on = False
            self._observers.tell(Event(EventKind.STORE_BACK))
