"""Queues whose single jobs do not take the short way, remembered for a moment so that each costs one call, not two."""

from __future__ import annotations

import time

_MOMENT = 1.0
"""Seconds. A queue that has lost its rules is tried again after that."""
_ONCE = 0.0
"""Instead of an instant: one row was not plain, which may be because the queue was new."""
_MOST = 1_000


class Detours:
    """The queues for which the store said lately, and not just once, that a row is not plain."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, queue: str) -> None:
        """The store said so. Of a queue that was never among them, the second time counts: the first row made it."""
        until = _ONCE if queue not in self._until else time.monotonic() + _MOMENT
        if len(self._until) >= _MOST:
            self._until.clear()
        self._until[queue] = until

    def __contains__(self, queue: str) -> bool:
        until = self._until.get(queue)
        return until is not None and until > time.monotonic()
