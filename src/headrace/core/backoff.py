"""Pauses between tries against a store that is away."""

from __future__ import annotations

from random import Random

_FIRST = 0.05
_LONGEST = 2.0


class Backoff:
    """Doubles from 50 ms to 2 s, each pause drawn from its upper half so that a fleet does not return in step."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._next = _FIRST

    def pause(self) -> float:
        """Seconds to wait before the next try."""
        pause = self._next * (0.5 + self._rng.random() / 2)
        self._next = min(self._next * 2, _LONGEST)
        return pause

    def reset(self) -> None:
        """The store answered."""
        self._next = _FIRST
