"""A backend behind a bad network: calls are delayed, lost on either way, or carried out twice or long after their
caller gave up."""

from __future__ import annotations

import asyncio
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from headrace.errors import Unavailable
from headrace.seam.protocol import Backend, TickStore
from headrace.seam.records import Claimed, Stamp
from headrace.testing.sim.hints import FaultyHints
from headrace.testing.sim.history import History
from headrace.testing.sim.nodes import Node
from headrace.testing.sim.observer import Audit
from headrace.testing.sim.plan import CALM, Fate, Plan, draw_fate
from headrace.testing.wrapped import Carry, Wrapped

T = TypeVar("T")


class FaultyBackend(Wrapped):
    """Any backend, seen from one node across a network that follows ``plan``. Every call is recorded in ``history``.

    The network is not part of the node: a request that was sent arrives even if its sender has been frozen or killed
    since. Calls reach the store one after the other, each at an instant of the store's clock, which is the history's.
    Without ``schedules`` the store appears as one that keeps none.
    """

    def __init__(
        self,
        inner: Backend,
        rng: Random,
        plan: Plan,
        history: History,
        node: Node,
        *,
        schedules: bool = True,
    ) -> None:
        super().__init__(inner)
        self._schedules = schedules
        self._rng = rng
        self._plan = plan
        self._history = history
        self._node = node
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def ticks(self) -> TickStore | None:
        return super().ticks if self._schedules else None

    @property
    def hints(self) -> FaultyHints | None:
        if self.inner.hints is None:
            return None
        return FaultyHints(self.inner.hints, self._rng, self._plan, self._history, self._node)

    def sibling(self) -> FaultyBackend:
        inner = self.inner.sibling()
        return FaultyBackend(inner, self._rng, self._plan, self._history, self._node, schedules=self._schedules)

    async def open(self) -> None:
        if self._node.cut:
            raise Unavailable(f"{self._node.name} is cut off from the store")
        await super().open()

    # -- the network

    async def _call(self, name: str, args: tuple[Any, ...], at: Stamp, carry: Carry[T]) -> T:
        history = self._history
        if history.closed:
            raise asyncio.CancelledError("the simulation is over")
        call = history.invoke(self._node.name, name, args)
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._send(self._transit(call, name, at, carry, reply))
        try:
            answer = await reply
        except (Unavailable, asyncio.CancelledError) as error:
            history.unknown(call, error)
            raise
        except Exception as error:
            history.fail(call, error)
            raise
        history.ok(call, answer)
        own: T = _own(answer)
        return own

    def _send(self, transit: Any) -> None:
        task = asyncio.get_running_loop().create_task(transit, name="transit", context=Context())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _transit(self, call: int, op: str, at: Stamp, carry: Carry[T], reply: asyncio.Future[T]) -> None:
        plan = CALM if self._node.calm else self._plan
        fate = draw_fate(plan, self._rng)
        for fault in fate.faults:
            self._history.fault(self._node.name, fault, op)
        given_up = asyncio.get_running_loop().call_later(plan.patience / 1e6, _refuse, reply, "no answer in time")
        await asyncio.sleep(fate.out / 1e6)
        if not self._passes(fate.drop, op):
            self._lose(fate, reply)
            return
        try:
            answer = await self._carry_out(call, op, at, carry)
        except Exception as error:
            _fail(reply, error)
            return
        if fate.again_after is not None:
            self._send(self._deliver_again(fate.again_after, call, op, at, carry))
        await asyncio.sleep(fate.back / 1e6)
        if not self._passes(fate.mute, op):
            self._lose(fate, reply)
            return
        given_up.cancel()
        if not reply.done():
            reply.set_result(answer)

    def _passes(self, lost: bool, op: str) -> bool:
        if self._node.cut:
            self._history.fault(self._node.name, "cut", op)
        return not (lost or self._node.cut)

    def _lose(self, fate: Fate, reply: asyncio.Future[T]) -> None:
        if fate.reset:
            _refuse(reply, "connection reset")

    async def _deliver_again(self, after: int, call: int, op: str, at: Stamp, carry: Carry[T]) -> None:
        await asyncio.sleep(after / 1e6)
        await self._carry_out(call, op, at, carry)

    async def _carry_out(self, call: int, op: str, at: Stamp, carry: Carry[T]) -> T:
        async with self._history.gate:
            now = self._history.now() if at is None else at
            audit = Audit(self.inner, op, now)
            await audit.before()
            answer = await carry(now)
            self._history.applied(call, now, answer, await audit.after(answer))
            return answer


def _refuse(reply: asyncio.Future[Any], why: str) -> None:
    _fail(reply, Unavailable(f"{why}: whether the call was carried out is not known"))


def _fail(reply: asyncio.Future[Any], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # seen: a node that was killed meanwhile never looks at it, and that is no leak


def _own(answer: Any) -> Any:
    """The answer, with lists of the caller's own: what a node does to them must not change the history."""
    match answer:
        case list():
            return list(answer)
        case tuple():
            return tuple(map(_own, answer))
        case Claimed(jobs, next_in, expired, passed_over, chosen):
            return Claimed(list(jobs), next_in, list(expired), passed_over, chosen)
        case _:
            return answer
