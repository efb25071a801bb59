"""The nemesis: crashes, pauses, partitions, blackouts, and clocks that are wrong or jump."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.testing.sim.cast.fleet import Fleet
from headrace.testing.sim.nodes import Node
from headrace.testing.sim.world import World


class Nemesis:
    """Strikes at random, in one of the ``kinds``, until the world is calm."""

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        pause: tuple[float, float],
        kinds: tuple[str, ...],
        name: str = "nemesis",
    ) -> None:
        self._world = world
        self._fleet = fleet
        self._pause = pause
        self._rng = world.rng(name)
        self._kinds = kinds
        self._strikes: dict[str, Callable[[], None]] = {
            "crash": self._crash,
            "freeze": self._freeze,
            "partition": self._partition,
            "blackout": self._blackout,
            "skew": self._skew,
            "leap": self._leap,
            "retire": fleet.retire_one,
        }

    async def strike(self) -> None:
        """Go on until the world is calm."""
        while not self._world.calm:
            await asyncio.sleep(self._rng.uniform(*self._pause))
            if not self._world.calm and self._fleet.nodes:
                self._strikes[self._rng.choice(self._kinds)]()

    def _one(self) -> Node:
        return self._rng.choice(self._fleet.nodes)

    def _any(self) -> Node:
        """Any machine at all, those of producers and operators included."""
        return self._rng.choice([node for node in self._world.loop.nodes if not node.dead])

    def _crash(self) -> None:
        node = self._one()
        self._world.history.fault(node.name, "crash")
        node.kill()

    def _freeze(self) -> None:
        node = self._one()
        if not node.frozen:
            self._world.history.fault(node.name, "freeze")
            node.freeze()
            self._later(self._rng.uniform(0.5, 8), self._thaw, node)

    def _thaw(self, node: Node) -> None:
        if node.frozen:
            self._world.history.fault(node.name, "thaw")
            node.thaw()

    def _partition(self) -> None:
        self._cut([self._any()], self._rng.uniform(0.3, 6))

    def _blackout(self) -> None:
        """All workers lose the store at once, for longer than their leases."""
        self._world.history.fault("fleet", "blackout")
        self._cut(self._fleet.nodes, self._rng.uniform(4, 6))

    def _cut(self, nodes: list[Node], seconds: float) -> None:
        for node in nodes:
            self._world.history.fault(node.name, "partition")
            node.cut = True
            self._later(seconds, self._join, node)

    def _join(self, node: Node) -> None:
        self._world.history.fault(node.name, "joined")
        node.cut = False

    def _skew(self) -> None:
        node = self._any()
        self._world.history.fault(node.name, "skew")
        node.skew = self._rng.randint(-3_600_000_000, 3_600_000_000)

    def _leap(self) -> None:
        """The store's own clock jumps ahead: every lease is over at once."""
        by = self._rng.randint(4_000_000, 20_000_000)
        self._world.history.fault("store", "leap", by)
        self._world.clock.jump(by)

    def _later(self, seconds: float, call: Callable[[Node], None], node: Node) -> None:
        self._world.loop.call_later(seconds, call, node)
