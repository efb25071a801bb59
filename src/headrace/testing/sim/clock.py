"""The time of day on a simulated node."""

from __future__ import annotations

from headrace.testing.sim.loop import SimLoop
from headrace.testing.sim.nodes import Node

ORIGIN = 1_800_000_000_000_000
"""The instant at which simulations begin: January 2027."""


class SimClock:
    """``origin`` plus the loop's virtual time, plus the skew of the node that it belongs to.

    ``stamp`` is None, as in production: the store's own clock decides. A store without a clock that can be set is
    given a number instead, with ``stamps=True``.
    """

    def __init__(self, loop: SimLoop, origin: int = ORIGIN, *, node: Node | None = None, stamps: bool = False) -> None:
        self._loop = loop
        self._origin = origin
        self._node = node
        self._stamps = stamps

    def now(self) -> int:
        """Microseconds since 1970."""
        return self._origin + self._loop.micros + (0 if self._node is None else self._node.skew)

    def elapsed(self) -> float:
        """Seconds of virtual time."""
        return self._loop.time()

    def stamp(self) -> int | None:
        """What to hand to a store as ``at``."""
        return self.now() if self._stamps else None

    def jump(self, by: int) -> None:
        """Step by this many microseconds, forwards or backwards, at once and for good."""
        self._origin += by
