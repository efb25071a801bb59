"""Whether Valkey has answered steadily."""

from __future__ import annotations


class Pulse:
    """Shared with siblings, as beats are sent from a thread of their own. Times are those of the store, in
    microseconds."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._since = 0

    def beat(self, now: int, gap: int) -> None:
        """Valkey answered a beat. It is steady as long as beats come no further apart than ``gap``."""
        if self._last is None or not 0 <= now - self._last <= gap:
            self._since = now
        self._last = now

    def told(self, gap: int, steady: int) -> tuple[int, int, int, int] | None:
        """What Valkey needs to know to tell whether the last beat is no older than ``gap``, and beats have been steady
        for so long: only its own clock says so, at the moment when it matters. None: there was no beat."""
        return None if self._last is None else (self._last, self._since, gap, steady)
