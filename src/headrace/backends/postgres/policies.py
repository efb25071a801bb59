"""The policies of queues on PostgreSQL: each operation is one call of a function on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.postgres.arrays import bigints, texts
from headrace.backends.postgres.capability import Call, Capability, Send
from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, Rate, TenantLimit, TenantState
from headrace.seam.records import Names, Stamp

_PAGE = 500
"""Tenants that one statement looks at."""


class PostgresPolicies(Capability):
    """See :class:`headrace.seam.protocol.PolicyStore`."""

    def __init__(self, call: Call, send: Send, count_cap: int) -> None:
        super().__init__(call, send)
        self._count_cap = count_cap

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        [[done]] = await self._call("save_policy", at, *_save_params(policy))
        if done:
            self._send([(f"queue:{policy.queue}", None)])
        return bool(done)

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        await self._call("limit_tenant", at, limit.queue, limit.tenant, limit.running, *_numbers(limit.rate))
        self._send([(f"queue:{limit.queue}", None)])

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        await self._call("pause", at, pause.queue, pause.tenant, pause.task, pause.paused, pause.lasts)
        if not pause.paused:
            self._send([(f"queue:{pause.queue}", None)])

    async def find(self, queues: Names = None, at: Stamp = None) -> list[PolicyState]:
        names = None if queues is None else texts(list(queues))
        return [_state(row) for row in await self._call("policies", at, names)]

    async def tenants(
        self, queue: str, names: Names = None, after: str | None = None, limit: int = 100, at: Stamp = None
    ) -> list[TenantState]:
        given = None if names is None else texts(list(names))
        found: list[TenantState] = []
        while (most := min(limit - len(found), _PAGE)) > 0:
            rows = await self._call("tenants", at, queue, given, found[-1].tenant if found else after, most)
            found += (self._tenant(queue, row) for row in rows)
            if len(rows) < most:
                break
        return found

    def _tenant(self, queue: str, row: Sequence[Any]) -> TenantState:
        tenant, waiting, running, own, most, every, burst, paused_until, opens_at, workers = row
        limit = TenantLimit(queue, tenant, most, _rate(every, burst)) if own else None
        waiting = min(waiting, self._count_cap)
        return TenantState(queue, tenant, waiting, running, limit, paused_until, opens_at, tuple(workers))

    async def group(self, queue: str, group: str) -> GroupState:
        [[called, waiting]] = await self._call("group", queue, group, self._count_cap)
        return GroupState(queue, group, tuple(called), waiting)


def _save_params(policy: Policy) -> tuple[Any, ...]:
    """The parameters of ``save_policy_v1``."""
    rates = list(policy.task_rates.values())
    return (
        policy.queue,
        policy.version,
        policy.running,
        *_numbers(policy.rate),
        policy.tenant_running,
        *_numbers(policy.tenant_rate),
        texts(list(policy.task_rates)),
        bigints([rate.every for rate in rates]),
        bigints([rate.burst for rate in rates]),
        policy.tenant_workers,
        policy.tenant_batch,
        policy.ageing,
        policy.group_running,
        policy.depth,
        policy.governs,
    )


def _numbers(rate: Rate | None) -> tuple[int | None, int | None]:
    return (None, None) if rate is None else (rate.every, rate.burst)


def _rate(every: int | None, burst: int | None) -> Rate | None:
    return None if every is None or burst is None else Rate(every, burst)


def _state(row: Sequence[Any]) -> PolicyState:
    (
        queue, version, running, every, burst, tenant_running, tenant_every, tenant_burst, tenant_workers, tenant_batch,
        ageing, group_running, depth, governed, opens_at, tasks, *columns,
    ) = row  # fmt: skip
    rates: dict[str, Rate] = {}
    pauses: dict[str, int] = {}
    opens: dict[str, int] = {} if opens_at is None else {"": opens_at}
    for task, task_every, task_burst, task_opens, pause in zip(
        tasks or (), *(one or () for one in columns), strict=True
    ):
        if task_every is not None:
            rates[task] = Rate(task_every, task_burst)
        if task_opens is not None:
            opens[task] = task_opens
        if pause is not None:
            pauses[task] = pause
    policy = Policy(
        queue=queue,
        version=version,
        running=running,
        rate=_rate(every, burst),
        tenant_running=tenant_running,
        tenant_rate=_rate(tenant_every, tenant_burst),
        task_rates=rates,
        tenant_workers=tenant_workers,
        tenant_batch=tenant_batch,
        ageing=ageing,
        group_running=group_running,
        depth=depth,
    )
    return PolicyState(policy, governed, pauses, opens)
