"""A worker process's place in the simulation: what it is given, and the handler that it is to run.

A worker is any coroutine function over a :class:`Seat`: it claims through ``backend``, calls ``perform`` for each job,
settles as the returned :class:`~headrace.testing.sim.script.Act` says, and returns soon after ``stop`` is set. It may
be frozen at any point, or killed and never heard of again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from msgspec import Struct

from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Reap
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.history import History, Run
from headrace.testing.sim.nodes import Node
from headrace.testing.sim.script import SECOND, Act, Script


class Duty(Struct, frozen=True, kw_only=True):
    """How workers work; times in microseconds."""

    queues: tuple[str, ...] = ("a", "b", "c")
    slots: int = 3
    lease_for: int = 3 * SECOND
    beat_every: int = SECOND
    poll_every: int = 2 * SECOND
    reap_every: int = SECOND
    reap: Reap = Reap(limit=100, max_lost=2)
    gap: int = 2 * SECOND
    at_work: int = 5 * SECOND
    want: frozenset[str] | None = None
    turns: bool = False
    """Whether to settle and claim in one trip."""


class Seat:
    """One process on one node."""

    def __init__(
        self,
        node: Node,
        backend: Backend,
        clock: SimClock,
        rng: Random,
        duty: Duty,
        script: Script,
        history: History,
    ) -> None:
        self.node = node
        self.backend = backend
        self.clock = clock
        self.rng = rng
        self.duty = duty
        self.stop = asyncio.Event()
        """Set: finish or give back what is held, and go."""
        self._script = script
        self._history = history

    async def perform(self, job_id: JobId, epoch: int) -> Act:
        """Run the job's handler, and learn what it came to."""
        act = self._script.act(job_id, epoch)
        self._history.start(self.node.name, Run(job_id, epoch))
        try:
            await asyncio.sleep(act.duration / 2e6)
            if act.kills:
                self._history.fault(self.node.name, "crash", "poison")
                self.node.kill()
            await asyncio.sleep(act.duration / 2e6)
        except asyncio.CancelledError:
            self._history.end(self.node.name, Run(job_id, epoch, "stopped"))
            raise
        self._history.end(self.node.name, Run(job_id, epoch, act.state.value))
        return act


WorkerMain = Callable[[Seat], Coroutine[Any, Any, None]]
"""The whole life of a worker process."""
