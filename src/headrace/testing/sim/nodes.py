"""A simulated machine: what runs on it can be frozen or killed as a whole, in the middle of anything."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from headrace.testing.sim.loop import SimLoop

T = TypeVar("T")

NODE: ContextVar[Node] = ContextVar("headrace_sim_node")
"""The node that the running code belongs to; tasks and callbacks inherit it with their context."""


class Node:
    """Code started with ``start``, and all that it starts in turn, belongs to the node.

    While a node is frozen not one callback of it runs, its timers included: a long collection pause, or SIGSTOP. A
    killed node never runs again and gets no chance to clean up: SIGKILL. What it had sent is on its way all the same.
    """

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.cut = False
        """Whether messages between this node and the store are lost, in both directions."""
        self.calm = False
        """Whether the network has stopped doing anything but delay."""
        self.skew = 0
        """Microseconds by which this node's clock is ahead."""
        self.parked: list[asyncio.Handle] = []
        """Callbacks that came up while the node stood still."""
        self._loop = loop
        loop.nodes.append(self)
        self._context = copy_context()
        self._context.run(NODE.set, self)

    @property
    def halted(self) -> bool:
        """Whether nothing of this node may run."""
        return self.frozen or self.dead

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run ``work`` on this node."""
        return self._loop.create_task(work, name=name or self.name, context=self._context.copy())

    def freeze(self) -> None:
        """Stand still until ``thaw``."""
        self.frozen = True

    def thaw(self) -> None:
        """Go on as if no time had passed."""
        self.frozen = False
        if not self.dead:
            self.release()

    def kill(self) -> None:
        """End here and now."""
        self.dead = True

    def release(self) -> None:
        """Give parked callbacks back to the loop."""
        parked, self.parked = self.parked, []
        for handle in parked:
            self._loop.unpark(handle)


def node_of(context: Context | None) -> Node | None:
    """The node that a callback with this context belongs to."""
    return None if context is None else context.get(NODE)
