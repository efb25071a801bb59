"""Policies behind a bad network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.protocol import PolicyStore
from headrace.seam.records import Stamp

Call = Callable[[str, Any, Stamp, Callable[[int], Awaitable[Any]]], Awaitable[Any]]
"""Carry an operation over the network, under its name and with its arguments."""


class FaultyPolicies:
    """The policies of another store as one node sees them; every call is recorded, like those of jobs."""

    def __init__(self, inner: PolicyStore, call: Call) -> None:
        self._inner = inner
        self._call = call

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        saved: bool = await self._call("save policy", (policy,), at, lambda now: self._inner.save(policy, now))
        return saved

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        await self._call("limit", (limit,), at, lambda now: self._inner.limit(limit, now))

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        await self._call("pause", (pause,), at, lambda now: self._inner.pause(pause, now))

    async def find(self, queues: Sequence[str] | None = None, at: Stamp = None) -> list[PolicyState]:
        names = None if queues is None else tuple(queues)
        found: list[PolicyState] = await self._call("policies", (names,), at, lambda now: self._inner.find(names, now))
        return found

    async def tenants(
        self,
        queue: str,
        names: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
        at: Stamp = None,
    ) -> list[TenantState]:
        args = (queue, None if names is None else tuple(names), after, limit)
        found: list[TenantState] = await self._call("tenants", args, at, lambda now: self._inner.tenants(*args, now))
        return found

    async def group(self, queue: str, group: str) -> GroupState:
        state: GroupState = await self._call("group", (queue, group), None, lambda now: self._inner.group(queue, group))
        return state
