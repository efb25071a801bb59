"""Queues whose single jobs do not take the short way, remembered for a moment so that each costs one call, not two."""

from __future__ import annotations

import time

_MOMENT = 1.0
"""Seconds. A queue that has lost its rules, or was new, is tried again after that."""
_MOST = 1_000


class Detours:
    """The queues for which the store said lately that a row is not plain."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, queue: str) -> None:
        if len(self._until) >= _MOST:
            self._until.clear()
        self._until[queue] = time.monotonic() + _MOMENT

    def __contains__(self, queue: str) -> bool:
        until = self._until.get(queue)
        if until is None:
            return False
        if until > time.monotonic():
            return True
        del self._until[queue]
        return False
