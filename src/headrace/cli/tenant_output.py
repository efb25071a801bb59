"""Tenants as text: the list, and the limits of one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from headrace import Client, PolicyInfo, TenantInfo
from headrace.cli.output import answered, clean, note, print_fields, print_table
from headrace.cli.policy_output import pause
from headrace.core.durations import relative
from headrace.limits.rates import spell_rate
from headrace.seam.policy import TenantLimit

_WORKERS = 3
"""Most that a line names."""


def named(name: str) -> str:
    """A name in a line of text; that of jobs without a tenant is empty.

    >>> named("acme"), named("")
    ('acme', "''")
    """
    return clean(name) or "''"


async def has_no_jobs(client: Client, queue: str, tenant: str) -> bool:
    """Whether no job of the tenant waits or runs in a governed queue; jobs that wait for their group do not count."""
    policies = (await client.backend()).policies
    found = [] if policies is None else await policies.tenants(queue, [tenant], at=client.clock.stamp())
    return not any(one.waiting or one.running for one in found)


def print_tenants(tenants: Sequence[TenantInfo], policy: PolicyInfo, most: int, at: datetime) -> None:
    """A list of tenants with their limits; waiting jobs are counted up to ``most``."""
    rows = [
        (
            named(one.tenant),
            one.waiting,
            one.running,
            _bound(one.limit, policy.tenant_running),
            _bound(one.rate, policy.tenant_rate) + (f", opens {relative(one.opens_at, at)}" if one.opens_at else ""),
            pause(one.paused_until, at) if one.paused else "",
            _workers(one.workers),
        )
        for one in tenants
    ]
    print_table(("tenant", "waiting", "running", "limit", "rate", "paused", "workers"), rows)
    if any(one.waiting >= most for one in tenants):
        note(f"waiting jobs are counted up to {most:,}")


def _bound(own: object, each: object) -> str:
    """Its own limit, or that of every tenant."""
    if own is not None:
        return f"{own} (its own)"
    return "" if each is None else f"{each}"


def _workers(names: Sequence[str]) -> str:
    more = len(names) - _WORKERS
    return ", ".join(names[:_WORKERS]) + (f" and {more} more" if more > 0 else "")


async def own_limit(client: Client, queue: str, tenant: str) -> TenantLimit:
    """A tenant's own limits in a queue."""
    store = (await client.backend()).policies
    found = [] if store is None else await store.tenants(queue, [tenant], at=client.clock.stamp())
    own = found[0].limit if found else None
    return own or TenantLimit(queue, tenant)


def print_limit(limit: TenantLimit, policy: PolicyInfo) -> None:
    """The limits of one tenant, and where they come from."""
    rate = None if limit.rate is None else spell_rate(limit.rate)
    data = {"queue": limit.queue, "tenant": limit.tenant, "running": limit.running, "rate": rate}
    if answered(data | {"tenant_running": policy.tenant_running, "tenant_rate": policy.tenant_rate}):
        return
    print_fields(
        [
            ("queue", limit.queue),
            ("tenant", named(limit.tenant)),
            ("running", _bound(limit.running, policy.tenant_running) or "any number"),
            ("rate", _bound(rate, policy.tenant_rate) or "any"),
        ]
    )
