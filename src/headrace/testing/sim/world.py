"""One simulated store, the nodes around it, and the history of it all."""

from __future__ import annotations

import asyncio
from random import Random

from headrace.seam.protocol import Backend
from headrace.seam.records import JobId
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.faults import FaultyBackend
from headrace.testing.sim.history import History
from headrace.testing.sim.loop import SimLoop
from headrace.testing.sim.nodes import Node
from headrace.testing.sim.observer import snapshot
from headrace.testing.sim.plan import Plan


class World:
    """Where a simulation takes place. Everything random in it comes from ``rng``, everything timed from the loop."""

    def __init__(
        self,
        store: Backend,
        plan: Plan,
        seed: int | str,
        replay: str = "",
        *,
        schedules: bool = True,
    ) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, SimLoop):
            raise TypeError(
                f"a simulation runs on a SimLoop, not on {type(loop).__name__}: see headrace.testing.sim.run"
            )
        self.loop = loop
        self.store = store
        self.plan = plan
        self.seed = seed
        self.clock = SimClock(loop)
        """The store's clock, and the one that the history is kept by."""
        self.history = History(self.clock.now, seed, replay)
        self.known: list[JobId] = []
        """Jobs that somebody has tried to enqueue."""
        self.calm = False
        """Whether the time of faults is over."""
        self._schedules = schedules

    def rng(self, name: str) -> Random:
        """Randomness of its own for each part, so that a change to one does not reshuffle the others."""
        return Random(f"{self.seed}:{name}")

    def node(self, name: str) -> Node:
        """A new machine."""
        node = Node(self.loop, name)
        node.calm = self.calm
        return node

    def backend(self, node: Node) -> FaultyBackend:
        """The store as that machine sees it."""
        rng = self.rng(f"network:{node.name}")
        return FaultyBackend(
            self.store,
            rng,
            self.plan,
            self.history,
            node,
            schedules=self._schedules,
        )

    def clear_up(self) -> None:
        """No more faults: what is cut is joined, what is frozen goes on, what is dead stays dead."""
        self.calm = True
        for node in self.loop.nodes:
            node.calm = True
            node.cut = False
            if node.frozen:
                node.thaw()

    async def look(self, *, final: bool = False) -> None:
        """Let the observer read the whole store."""
        async with self.history.gate:
            self.history.snapshot(await snapshot(self.store, self.history.now(), final=final))


def make_id(clock: SimClock, rng: Random) -> JobId:
    """An id that sorts by the time of its making, as its maker's clock tells it."""
    return ((clock.now() // 1_000 << 80) | rng.getrandbits(80)).to_bytes(16, "big")
