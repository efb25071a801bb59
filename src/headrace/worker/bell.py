"""The bell that makes a worker look for something to do."""

from __future__ import annotations

from collections.abc import Callable


class Bell:
    """Any stage rings it when something has changed. Whoever makes trips to the store then looks whether one is due."""

    def __init__(self) -> None:
        self._ears: list[Callable[[], None]] = []

    def heard_by(self, ear: Callable[[], None]) -> None:
        """Call ``ear`` whenever the bell rings."""
        self._ears.append(ear)

    def ring(self) -> None:
        """Something has changed."""
        for ear in self._ears:
            ear()
