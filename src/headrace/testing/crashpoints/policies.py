"""Policies whose calls count, and at any of which the process may crash."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, TenantLimit, TenantState
from headrace.seam.protocol import PolicyStore
from headrace.seam.records import Stamp

T = TypeVar("T")


class Call(Protocol):
    """Carries out an operation under its name."""

    async def __call__(self, name: str, at: Stamp, call: Coroutine[Any, Any, T]) -> T: ...


class InterruptedPolicies:
    """The policies of any backend."""

    def __init__(self, inner: PolicyStore, call: Call) -> None:
        self._inner = inner
        self._call = call

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        return await self._call("save policy", at, self._inner.save(policy, at))

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        await self._call("limit tenant", at, self._inner.limit(limit, at))

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        await self._call("pause queue", at, self._inner.pause(pause, at))

    async def find(self, queues: Sequence[str] | None = None, at: Stamp = None) -> list[PolicyState]:
        return await self._call("find policies", at, self._inner.find(queues, at))

    async def tenants(
        self,
        queue: str,
        names: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
        at: Stamp = None,
    ) -> list[TenantState]:
        return await self._call("list tenants", at, self._inner.tenants(queue, names, after, limit, at))

    async def group(self, queue: str, group: str) -> GroupState:
        return await self._call("show group", None, self._inner.group(queue, group))
