"""A backend behind a bad network: calls are delayed, lost on either way, or carried out twice or long after their
caller gave up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from headrace.errors import Unavailable
from headrace.seam.protocol import Backend, Transactions, Turn
from headrace.seam.records import (
    Altered,
    Beat,
    Change,
    Claim,
    Claimed,
    Inserted,
    JobId,
    JobKey,
    Limits,
    Page,
    Reap,
    Reaped,
    Record,
    Renewed,
    Row,
    Selector,
    Settlement,
    Stamp,
    Stats,
    SweepClause,
    Swept,
)
from headrace.testing.sim.hints import FaultyHints
from headrace.testing.sim.history import History
from headrace.testing.sim.nodes import Node
from headrace.testing.sim.observer import Audit
from headrace.testing.sim.plan import CALM, Fate, Plan, draw_fate
from headrace.testing.sim.policies import FaultyPolicies
from headrace.testing.sim.ticks import FaultyTicks
from headrace.types import JobState

T = TypeVar("T")
Carry = Callable[[int], Awaitable[T]]


class FaultyBackend:
    """Any backend, seen from one node across a network that follows ``plan``. Every call is recorded in ``history``.

    The network is no part of the node: a request that was sent arrives although its sender has been frozen or killed
    since. Calls reach the store one after the other, each at an instant of the store's clock, which is the history's.
    Without ``schedules`` it is one that keeps none.
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
        self._inner = inner
        self._schedules = schedules
        self._rng = rng
        self._plan = plan
        self._history = history
        self._node = node
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def limits(self) -> Limits:
        return self._inner.limits

    @property
    def tx(self) -> Transactions | None:
        return self._inner.tx

    @property
    def ticks(self) -> FaultyTicks | None:
        if self._inner.ticks is None or not self._schedules:
            return None
        return FaultyTicks(self._inner.ticks, self._call)

    @property
    def policies(self) -> FaultyPolicies | None:
        return None if self._inner.policies is None else FaultyPolicies(self._inner.policies, self._call)

    @property
    def hints(self) -> FaultyHints | None:
        if self._inner.hints is None:
            return None
        return FaultyHints(self._inner.hints, self._rng, self._plan, self._history, self._node)

    @property
    def turn(self) -> Turn | None:
        return None if self._inner.turn is None else self._turn

    def sibling(self) -> FaultyBackend:
        inner = self._inner.sibling()
        return FaultyBackend(inner, self._rng, self._plan, self._history, self._node, schedules=self._schedules)

    async def open(self) -> None:
        if self._node.cut:
            raise Unavailable(f"{self._node.name} is cut off from the store")
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def insert(self, rows: Sequence[Row], at: Stamp = None) -> list[Inserted]:
        rows = tuple(rows)
        return await self._call("insert", (rows,), at, lambda now: self._inner.insert(rows, now))

    async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
        return await self._call("claim", (req,), at, lambda now: self._inner.claim(req, now))

    async def finish(self, batch: Sequence[Settlement], at: Stamp = None) -> list[JobState | None]:
        batch = tuple(batch)
        return await self._call("finish", (batch,), at, lambda now: self._inner.finish(batch, now))

    async def _turn(
        self, batch: Sequence[Settlement], req: Claim, at: Stamp = None
    ) -> tuple[list[JobState | None], Claimed]:
        batch, turn = tuple(batch), self._inner.turn
        assert turn is not None
        return await self._call("turn", (batch, req), at, lambda now: turn(batch, req, now))

    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        return await self._call("renew", (beat,), at, lambda now: self._inner.renew(beat, now))

    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        return await self._call("reap", (req,), at, lambda now: self._inner.reap(req, now))

    async def alter(self, sel: Selector, change: Change, at: Stamp = None) -> list[Altered]:
        return await self._call("alter", (sel, change), at, lambda now: self._inner.alter(sel, change, now))

    async def fetch(
        self, names: Sequence[JobId | JobKey], want: frozenset[str] = frozenset(), at: Stamp = None
    ) -> list[Record | None]:
        names = tuple(names)
        return await self._call("fetch", (names, want), at, lambda now: self._inner.fetch(names, want, now))

    async def scan(self, sel: Selector, after: str | None = None, limit: int = 100, at: Stamp = None) -> Page:
        return await self._call("scan", (sel, after, limit), at, lambda now: self._inner.scan(sel, after, limit, now))

    async def stats(self, at: Stamp = None, *, queues: Sequence[str] | None = None) -> Stats:
        return await self._call("stats", (), at, lambda now: self._inner.stats(now, queues=queues))

    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        return await self._call("sweep", (clause,), at, lambda now: self._inner.sweep(clause, now))

    # -- the network

    async def _call(self, op: str, args: Any, at: Stamp, carry: Carry[T]) -> T:
        history = self._history
        if history.closed:
            raise asyncio.CancelledError("the simulation is over")
        call = history.invoke(self._node.name, op, args)
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._send(self._transit(call, op, at, carry, reply))
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
            audit = Audit(self._inner, op, now)
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
