"""One store around another: every operation passes one place.

There it can be counted, timed, delayed, refused or sent through a bad network. The name of an operation is its path
from the backend, such as ``claim`` or ``ticks.due``.

>>> import asyncio
>>> from headrace.backends.memory import MemoryBackend
>>> class Timed(Wrapped):
...     async def _call(self, name, args, at, carry):
...         began = asyncio.get_running_loop().time()
...         try:
...             return await carry(at)
...         finally:
...             took[name] = asyncio.get_running_loop().time() - began
>>> took = {}
>>> async def main():
...     store = Timed(MemoryBackend())
...     await store.stats()
...     await store.policies.find()
>>> asyncio.run(main())
>>> list(took)
['stats', 'policies.find']
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from headrace.seam import records as r
from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.protocol import Backend, FinishAndClaim, Hints, PolicyStore, TickStore, Tidy, Transactions
from headrace.seam.ticks import Drop, Look, Looked, Plan, Save, Schedule, ScheduleSelector, Tick, TickNote, TickOutcome
from headrace.types import JobState

T = TypeVar("T")
Carry = Callable[[r.Stamp], Awaitable[T]]
"""Carries the operation out at an instant."""


class Wrapped:
    """Any backend. A subclass overrides ``_call``, and the capabilities that it wants to show in another way."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    async def _call(self, name: str, args: tuple[Any, ...], at: r.Stamp, carry: Carry[T]) -> T:
        """One operation, with its arguments but for ``at``. ``carry(at)`` is the operation of the inner store."""
        return await carry(at)

    @property
    def limits(self) -> r.Limits:
        return self.inner.limits

    @property
    def tx(self) -> Transactions | None:
        return self.inner.tx

    @property
    def ticks(self) -> TickStore | None:
        return None if self.inner.ticks is None else _WrappedTicks(self.inner.ticks, self._call)

    @property
    def policies(self) -> PolicyStore | None:
        return None if self.inner.policies is None else _WrappedPolicies(self.inner.policies, self._call)

    @property
    def hints(self) -> Hints | None:
        return self.inner.hints

    @property
    def finish_and_claim(self) -> FinishAndClaim | None:
        return None if self.inner.finish_and_claim is None else self._finish_and_claim

    @property
    def tidy(self) -> Tidy | None:
        return None if self.inner.tidy is None else self._tidy

    def sibling(self) -> Backend:
        """A sibling of the inner store, not wrapped: a subclass knows what it takes to wrap it."""
        return self.inner.sibling()

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def now(self, at: r.Stamp = None) -> int:
        return await self._call("now", (), at, self.inner.now)

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        rows = tuple(rows)
        return await self._call("insert", (rows,), at, lambda now: self.inner.insert(rows, now))

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        return await self._call("claim", (req,), at, lambda now: self.inner.claim(req, now))

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        batch = tuple(batch)
        return await self._call("finish", (batch,), at, lambda now: self.inner.finish(batch, now))

    async def _finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        batch, both = tuple(batch), self.inner.finish_and_claim
        assert both is not None
        return await self._call("finish_and_claim", (batch, req), at, lambda now: both(batch, req, now))

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        return await self._call("renew", (beat,), at, lambda now: self.inner.renew(beat, now))

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        return await self._call("reap", (req,), at, lambda now: self.inner.reap(req, now))

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        return await self._call("alter", (sel, change), at, lambda now: self.inner.alter(sel, change, now))

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        names = tuple(names)
        return await self._call("fetch", (names, want), at, lambda now: self.inner.fetch(names, want, now))

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        return await self._call("scan", (sel, after, limit), at, lambda now: self.inner.scan(sel, after, limit, now))

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        args = () if queues is None else (queues,)
        return await self._call("stats", args, at, lambda now: self.inner.stats(now, queues=queues))

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        return await self._call("sweep", (clause,), at, lambda now: self.inner.sweep(clause, now))

    async def _tidy(self, clauses: Sequence[r.SweepClause], at: r.Stamp = None) -> Mapping[r.Place, int]:
        clauses, tidy = tuple(clauses), self.inner.tidy
        assert tidy is not None
        return await self._call("tidy", (clauses,), at, lambda now: tidy(clauses, now))


class _Call(Protocol):
    async def __call__(self, name: str, args: tuple[Any, ...], at: r.Stamp, carry: Carry[T], /) -> T: ...


class _WrappedTicks:
    def __init__(self, inner: TickStore, call: _Call) -> None:
        self._inner = inner
        self._call = call

    async def save(self, batch: Sequence[Save | Drop], at: r.Stamp = None) -> list[bool]:
        batch = tuple(batch)
        return await self._call("ticks.save", (batch,), at, lambda now: self._inner.save(batch, now))

    async def find(self, sel: ScheduleSelector, after: str | None = None, limit: int = 100) -> list[Schedule]:
        args = (sel, after, limit)
        return await self._call("ticks.find", args, None, lambda now: self._inner.find(*args))

    async def due(self, req: Look, at: r.Stamp = None) -> Looked:
        return await self._call("ticks.due", (req,), at, lambda now: self._inner.due(req, now))

    async def plan(self, batch: Sequence[Plan], at: r.Stamp = None) -> list[list[TickOutcome | None] | None]:
        batch = tuple(batch)
        return await self._call("ticks.plan", (batch,), at, lambda now: self._inner.plan(batch, now))

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[Tick]:
        args = (uid, before, limit)
        return await self._call("ticks.history", args, None, lambda now: self._inner.history(*args))

    async def note(self, batch: Sequence[TickNote], at: r.Stamp = None) -> None:
        batch = tuple(batch)
        await self._call("ticks.note", (batch,), at, lambda now: self._inner.note(batch, now))


class _WrappedPolicies:
    def __init__(self, inner: PolicyStore, call: _Call) -> None:
        self._inner = inner
        self._call = call

    async def save(self, policy: Policy, at: r.Stamp = None) -> bool:
        return await self._call("policies.save", (policy,), at, lambda now: self._inner.save(policy, now))

    async def limit(self, limit: TenantLimit, at: r.Stamp = None) -> None:
        await self._call("policies.limit", (limit,), at, lambda now: self._inner.limit(limit, now))

    async def pause(self, pause: QueuePause, at: r.Stamp = None) -> None:
        await self._call("policies.pause", (pause,), at, lambda now: self._inner.pause(pause, now))

    async def find(self, queues: r.Names = None, at: r.Stamp = None) -> list[PolicyState]:
        names = None if queues is None else tuple(queues)
        return await self._call("policies.find", (names,), at, lambda now: self._inner.find(names, now))

    async def tenants(
        self, queue: str, names: r.Names = None, after: str | None = None, limit: int = 100, at: r.Stamp = None
    ) -> list[TenantState]:
        args = (queue, None if names is None else tuple(names), after, limit)
        return await self._call("policies.tenants", args, at, lambda now: self._inner.tenants(*args, now))

    async def group(self, queue: str, group: str) -> GroupState:
        args = (queue, group)
        return await self._call("policies.group", args, None, lambda now: self._inner.group(*args))
