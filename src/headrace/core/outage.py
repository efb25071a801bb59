"""Whether the store answers, as told to observers: once when it stops, once when it does so again."""

from __future__ import annotations

from headrace.core.events import Event, EventKind, Observers


class Outage:
    """What all lanes of a worker know of the store's absence."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._on = False

    def begins(self, error: Exception) -> None:
        """A trip failed."""
        if not self._on:
            self._on = True
            self._observers.tell(Event(EventKind.STORE_AWAY, error=error, detail=str(error)))

    def ends(self) -> None:
        """A trip got through."""
        if self._on:
            self._on = False
            self._observers.tell(Event(EventKind.STORE_BACK))
