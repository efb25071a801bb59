"""Whether the store answers, as told to observers: once when it stops, once when it does so again."""

from __future__ import annotations

import asyncio
import math

from headrace.core.events import Event, EventKind, Observers


class Outage:
    """Shared by all trips of a worker: when the store answered last, and whether it is away."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._on = False
        self.answered = -math.inf
        """When a trip last got through, by the loop's clock."""
        self.settled = -math.inf
        """When a trip with settlements last got through."""

    @property
    def ever_answered(self) -> bool:
        return self.answered > -math.inf

    def begins(self, error: Exception) -> None:
        """A trip failed."""
        if not self._on:
            self._on = True
            self._observers.tell(Event(EventKind.STORE_AWAY, error=error, detail=str(error)))

    def ends(self, *, settled: bool) -> None:
        """A trip got through. ``settled``: it carried settlements."""
        self.answered = asyncio.get_running_loop().time()
        if settled:
            self.settled = self.answered
        if self._on:
            self._on = False
            self._observers.tell(Event(EventKind.STORE_BACK))
