"""Hints over a bad network: lost, doubled, late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from contextvars import Context
from random import Random

from headrace.seam.protocol import Hints
from headrace.seam.records import Hint
from headrace.testing.sim.history import History
from headrace.testing.sim.nodes import Node
from headrace.testing.sim.plan import Plan


class FaultyHints:
    """The hints of another store as they reach one node. They stay unreliable when the network is calm, as that is
    their nature: code that needs them to make progress has a bug."""

    def __init__(self, inner: Hints, rng: Random, plan: Plan, history: History, node: Node) -> None:
        self._inner = inner
        self._rng = rng
        self._plan = plan
        self._history = history
        self._node = node

    @asynccontextmanager
    async def listen(self, topics: Collection[str]) -> AsyncIterator[AsyncIterator[Hint]]:
        arrivals = _Arrivals()
        loop = asyncio.get_running_loop()
        async with self._inner.listen(topics) as source:
            carrier = loop.create_task(self._carry(source, arrivals), name="hints", context=Context())
            try:
                yield arrivals
            finally:
                carrier.cancel()
                await asyncio.gather(carrier, return_exceptions=True)

    async def _carry(self, source: AsyncIterator[Hint], arrivals: _Arrivals) -> None:
        async for hint in source:
            plan = self._plan
            lot = self._rng.random()
            after = self._rng.randint(*plan.latency)
            if self._node.cut or lot < plan.hint_drop:
                self._history.fault(self._node.name, "hint drop", hint.topic)
                continue
            lot -= plan.hint_drop
            if lot < plan.hint_double:
                self._history.fault(self._node.name, "hint double", hint.topic)
                self._deliver(hint, arrivals, 2 * after)
            elif lot < plan.hint_double + plan.hint_delay:
                self._history.fault(self._node.name, "hint delay", hint.topic)
                after += self._rng.randint(0, 3 * plan.patience)
            self._deliver(hint, arrivals, after)

    def _deliver(self, hint: Hint, arrivals: _Arrivals, after: int) -> None:
        asyncio.get_running_loop().call_later(after / 1e6, arrivals.put, hint)


class _Arrivals:
    """Hints that have reached the node."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Hint] = asyncio.Queue()

    def put(self, hint: Hint) -> None:
        self._queue.put_nowait(hint)

    def __aiter__(self) -> _Arrivals:
        return self

    async def __anext__(self) -> Hint:
        return await self._queue.get()
