"""The policies of queues in one shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from headrace.backends.portions import slices
from headrace.backends.redis.job_layout import encode
from headrace.backends.redis.marshalling import at_arg, or_false, tuples
from headrace.seam.policy import GroupState, Policy, PolicyState, QueuePause, Rate, TenantLimit, TenantState
from headrace.seam.records import Names, Stamp

_Pair = tuple[int, int]
_Bucket = tuple[int, int, int]
_Rules = tuple[
    int, int | bool, _Pair | bool, int | bool, _Pair | bool, bool, int | bool, int | bool, int | bool, int, int | bool,
    bool,
]  # fmt: skip
_Limit = tuple[int | bool, _Pair | bool]
_Holders = dict[str, int] | tuple[()]
_rules: Callable[[bytes], _Rules] = msgspec.msgpack.Decoder(_Rules).decode
_rate_of: Callable[[bytes], _Pair] = msgspec.msgpack.Decoder(_Pair).decode
_bucket: Callable[[bytes], _Bucket] = msgspec.msgpack.Decoder(_Bucket).decode


class _Tenant(msgspec.Struct, array_like=True):
    """A tenant as scripts write it; see ``lua/turns.lua``."""

    queue: int
    name: str
    count: int
    since: int
    status: int
    wake_at: int
    running: int
    waiting: _Pair
    holders: _Holders
    limit: _Limit | bool
    paused: int
    bucket: _Bucket | bool


_tenant: Callable[[bytes], _Tenant] = msgspec.msgpack.Decoder(_Tenant).decode

_QUEUES = 100
"""How many queues' policies one call reads."""


class ShardPolicies:
    """The operations of a :class:`~headrace.seam.protocol.PolicyStore`, each one call of a script."""

    def __init__(self, run: Callable[..., Awaitable[Any]], count_cap: int) -> None:
        self._run = run
        self._count_cap = count_cap

    async def save(self, policy: Policy, at: Stamp = None) -> bool:
        """Changes for very many tenants, jobs or groups are made in several steps. If this is interrupted, claims and
        reaps do the rest."""
        done, more = await self._run("policy", at_arg(at), policy.queue, policy.version, _pack(policy), *_rates(policy))
        await self._go_on(policy.queue, more, at)
        return bool(done)

    async def _go_on(self, queue: str, more: int, at: Stamp) -> None:
        """Do the remaining steps of a change of the rules."""
        while more:
            more = await self._run("steps", at_arg(at), queue)

    async def limit(self, limit: TenantLimit, at: Stamp = None) -> None:
        bound = limit.running is not None or limit.rate is not None
        packed = encode((or_false(limit.running), _pair(limit.rate))) if bound else b""
        more = await self._run("limit", at_arg(at), limit.queue, limit.tenant, packed)
        await self._go_on(limit.queue, more, at)

    async def pause(self, pause: QueuePause, at: Stamp = None) -> None:
        kind, name = ("q", "") if pause.task is None else ("k", pause.task)
        if pause.tenant is not None:
            kind, name = "t", pause.tenant
        lasts: int | str = 0 if not pause.paused else "" if pause.lasts is None else pause.lasts
        more = await self._run("pause", at_arg(at), pause.queue, kind, name, lasts)
        await self._go_on(pause.queue, more, at)

    async def find(self, queues: Names = None, at: Stamp = None) -> list[PolicyState]:
        """Reads some queues at a time."""
        names = queues
        if names is None:
            names = [name.decode() for name in await self._run("policies", at_arg(at), "")]
        found: list[PolicyState] = []
        for piece in slices(names, _QUEUES):
            now, answers = await self._run("policies", at_arg(at), encode(piece))
            found += [_state(int(now), *one) for one in answers]
        return sorted(found, key=lambda state: state.policy.queue)

    async def tenants(
        self, queue: str, names: Names = None, after: str | None = None, limit: int = 100, at: Stamp = None
    ) -> list[TenantState]:
        wanted: bytes | str = ""
        if names is not None:
            wanted = encode(sorted(name for name in set(names) if after is None or name > after))
        above = "-" if after is None else f"[{after}\1"
        now, policy, answers = await self._run("tenants", at_arg(at), queue, wanted, above, limit, self._count_cap)
        rules = _unpack(queue, policy)
        return [_tenant_state(rules, int(now), *one) for one in answers]

    async def group(self, queue: str, group: str) -> GroupState:
        called, waiting = await self._run("group", queue, group)
        return GroupState(queue, group, tuple(sorted(called)), min(waiting, self._count_cap))


def _pair(rate: Rate | None) -> _Pair | bool:
    return False if rate is None else (rate.every, rate.burst)


def _pack(policy: Policy) -> bytes:
    """The stored form, with the next version."""
    rules: _Rules = (
        policy.version + 1, or_false(policy.running), _pair(policy.rate), or_false(policy.tenant_running),
        _pair(policy.tenant_rate), bool(policy.task_rates), or_false(policy.tenant_workers),
        or_false(policy.tenant_batch), or_false(policy.ageing), policy.group_running, or_false(policy.depth),
        policy.governs,
    )  # fmt: skip
    return encode(rules)


def _rates(policy: Policy) -> list[str | bytes]:
    """Each task that has a rate, followed by the rate."""
    return [part for task, rate in policy.task_rates.items() for part in (task, encode((rate.every, rate.burst)))]


def _or_none(value: int | bool) -> int | None:
    return None if value is False else value


def _rate(pair: _Pair | bool) -> Rate | None:
    return None if isinstance(pair, bool) else Rate(*pair)


def _unpack(queue: str, packed: bytes, rates: Sequence[bytes] = ()) -> Policy:
    if not packed:
        return Policy(queue=queue)
    version, running, rate, tenant_running, tenant_rate, _, workers, batch, ageing, groups, depth, _ = _rules(packed)
    return Policy(
        queue=queue,
        version=version,
        running=_or_none(running),
        rate=_rate(rate),
        tenant_running=_or_none(tenant_running),
        tenant_rate=_rate(tenant_rate),
        task_rates={task.decode(): Rate(*_rate_of(packed)) for task, packed in tuples(rates, 2)},
        tenant_workers=_or_none(workers),
        tenant_batch=_or_none(batch),
        ageing=_or_none(ageing),
        group_running=groups,
        depth=_or_none(depth),
    )


def _opens_at(rate: Rate | None, bucket: _Bucket | bool | None, now: int) -> int | None:
    """When a closed rate opens, according to its bucket; None: it is open."""
    if rate is None or bucket is None or isinstance(bucket, bool):
        return None
    every, burst, full_at = bucket
    if Rate(every, burst) != rate or rate.allows(full_at, now):
        return None
    return rate.opens_at(full_at)


def _state(
    now: int,
    name: bytes,
    packed: bytes,
    governed: int,
    paused: Sequence[bytes],
    flat: Sequence[bytes],
    rates: Sequence[bytes],
) -> PolicyState:
    policy = _unpack(name.decode(), packed, rates)
    buckets = {name.decode(): _bucket(packed) for name, packed in tuples(flat, 2)}
    gates = {"": _opens_at(policy.rate, buckets.get("q"), now)}
    for task, rate in policy.task_rates.items():
        gates[task] = _opens_at(rate, buckets.get(f"k{task}"), now)
    return PolicyState(
        policy,
        bool(governed),
        {task.decode(): int(until) for task, until in tuples(paused, 2)},
        {task: opens_at for task, opens_at in gates.items() if opens_at is not None},
    )


def _tenant_state(policy: Policy, now: int, packed: bytes, waiting: int, workers: Sequence[bytes]) -> TenantState:
    tenant = _tenant(packed)
    limit, own, paused = None, tenant.limit, tenant.paused
    if not isinstance(own, bool):
        limit = TenantLimit(policy.queue, tenant.name, _or_none(own[0]), _rate(own[1]))
    rate = limit.rate if limit is not None and limit.rate is not None else policy.tenant_rate
    until, listed = paused if paused > now else None, tuple(sorted(worker.decode() for worker in workers))
    return TenantState(
        policy.queue, tenant.name, waiting, tenant.running, limit, until, _opens_at(rate, tenant.bucket, now), listed
    )
