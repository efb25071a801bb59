"""The worker processes: some join, some crash and come back, some are stopped."""

from __future__ import annotations

import asyncio
from random import Random

from headrace.testing.sim.cast.seat import Duty, Seat, WorkerMain
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.nodes import Node
from headrace.testing.sim.script import Script
from headrace.testing.sim.world import World

_PATIENCE = 60.0
"""Seconds that a worker has to stop."""


class Fleet:
    """``size`` workers. Each that dies is replaced by a new process on a new node after a while."""

    def __init__(
        self, world: World, size: int, duty: Duty, script: Script, main: WorkerMain, name: str = "worker"
    ) -> None:
        self._world = world
        self._name = name
        self._duty = duty
        self._script = script
        self._main = main
        self._rng: Random = world.rng("fleet" if name == "worker" else f"fleet of {name}s")
        self._seats: list[Seat] = []
        self._lives: list[tuple[Seat, asyncio.Task[None]]] = []
        self._births = 0
        self._dismissed = False
        for _ in range(size):
            self._hire()

    @property
    def nodes(self) -> list[Node]:
        """The machines of those that live."""
        return [seat.node for seat in self._seats if not seat.node.dead]

    async def keep(self) -> None:
        """Replace the dead, forever. A worker that ends without being stopped, or in error, ends the simulation."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.3, 3.0))
            for seat, life in self._lives:
                if life.done() and not seat.node.dead:
                    life.result()
                    if not seat.stop.is_set():
                        raise RuntimeError(f"{seat.node.name} has left without being stopped")
            self._replace_dead()

    def retire_one(self) -> None:
        """Stop one worker, as a deployment does, and start another in its place."""
        going = [place for place, seat in enumerate(self._seats) if not (seat.node.halted or seat.node.cut)]
        if not going:
            return
        place = self._rng.choice(going)
        self._world.history.fault(self._seats[place].node.name, "retire")
        self._seats[place].stop.set()
        del self._seats[place]
        self._hire()

    async def dismiss(self) -> None:
        """Stop all workers, and start no more."""
        self._dismissed = True
        for seat in self._seats:
            seat.stop.set()
        if self._lives:
            await asyncio.wait([life for _, life in self._lives], timeout=_PATIENCE)
        for seat, life in self._lives:
            if life.done():
                life.result()
            elif not seat.node.dead:
                raise RuntimeError(f"{seat.node.name} was asked to stop and has not, {_PATIENCE:g} s later")

    def _replace_dead(self) -> None:
        dead = [seat for seat in self._seats if seat.node.dead]
        self._seats = [seat for seat in self._seats if not seat.node.dead]
        if not self._dismissed:
            for _ in dead:
                self._hire()

    def _hire(self) -> None:
        self._births += 1
        name = f"{self._name} {self._births}"
        node = self._world.node(name)
        node.skew = self._rng.choice((0, self._rng.randint(-300_000_000, 300_000_000)))
        clock = SimClock(self._world.loop, node=node)
        seat = Seat(
            node,
            self._world.backend(node),
            clock,
            self._world.rng(name),
            self._duty,
            self._script,
            self._world.history,
        )
        self._seats.append(seat)
        self._lives.append((seat, node.start(self._main(seat), name)))
