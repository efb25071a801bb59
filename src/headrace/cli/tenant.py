"""``headrace tenant``: look at the tenants of a queue, limit, pause and resume them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from headrace.cli import options
from headrace.cli.known import note_unknown, stats_of
from headrace.cli.lazy import Group
from headrace.cli.loading import Store
from headrace.cli.options import json_option, limit_option, rule, rule_option, store_options
from headrace.cli.output import note, print_json
from headrace.cli.policies import policies_of
from headrace.cli.tenants import named, own_limit, print_limit, print_tenants
from headrace.cli.times import now
from headrace.core.durations import spell
from headrace.seam.policy import TenantLimit

F = TypeVar("F", bound=Callable[..., Any])


@click.group("tenant", cls=Group)
def tenant_command() -> None:
    """Look at the tenants of a queue, limit, pause and resume them.

    In a queue that has rules, tenants take turns, and each may have limits of its own.
    """


def pair_arguments(command: F) -> F:
    """``QUEUE TENANT``."""
    decorated = click.argument("tenant", type=options.tenant)(command)
    return click.argument("queue", type=options.name)(decorated)


@tenant_command.command("list")
@click.argument("queue", type=options.name)
@click.option("--after", type=options.tenant, metavar="TENANT", help="Only names above this one.")
@limit_option(50, "At most so many, in the order of their names.")
@json_option
@store_options
def list_command(store: Store, queue: str, after: str | None, limit: int, as_json: bool) -> None:
    """List the tenants of a queue.

    Those that have jobs, limits of their own, or are paused. Jobs that wait for the turn of their group are not among
    those that wait.
    """
    asyncio.run(_list(store, queue, after, limit, as_json=as_json))


async def _list(store: Store, queue: str, after: str | None, limit: int, *, as_json: bool) -> None:
    async with store.opened() as client:
        policies = policies_of(client)
        policy = await policies.get(queue)
        found = await policies.tenants(queue, after=after, limit=limit + 1)
        stats, most = await stats_of(client, queue), client.limits.count_cap
    tenants, more = found[:limit], len(found) > limit
    if as_json:
        rules = {"tenant_running": policy.tenant_running, "tenant_rate": policy.tenant_rate}
        listed = [tenant.to_dict() for tenant in tenants]
        print_json({"queue": queue, "fair": policy.fair, **rules, "tenants": listed, "more": more})
        return
    if tenants:
        print_tenants(tenants, policy, most, now())
    elif policy.fair:
        note(f"no tenant of queue {queue!r} has jobs, a limit of its own, or is paused")
    elif not note_unknown(queue, stats, "so it has no tenants"):
        note(
            f"the tenants of queue {queue!r} take no turns, and are not known: it has no limits. Give it one, and they "
            f"do: headrace queue limit {shlex.quote(queue)} --tenant-running 10"
        )
    if more:
        note(f"there are more; go on with --after {shlex.quote(tenants[-1].tenant)}, or raise --limit")


@tenant_command.command("limit")
@pair_arguments
@rule_option("--running", "N|none", "At most so many of its jobs run at once.")
@rule_option("--rate", "R|none", "No more are started, such as 10/s, 5/10m or '10/s, burst 20'.")
@click.option("--none", is_flag=True, help="No limits of its own any more.")
@json_option
@store_options
def limit_command(
    store: Store, queue: str, tenant: str, running: str | None, rate: str | None, none: bool, as_json: bool
) -> None:
    """Give a tenant limits of its own in a queue.

    Instead of --tenant-running and --tenant-rate of the queue, which hold for all others. What is not named stays; none
    takes it away.
    """
    given = {"running": running, "rate": rate}
    if none and any(text is not None for text in given.values()):
        raise click.UsageError("expected --none or limits, got both")
    if not none and all(text is None for text in given.values()):
        raise click.UsageError(
            "expected --running, --rate, or --none to take both away; 'headrace tenant list' shows what holds"
        )
    changes = {name: rule(name, text) for name, text in given.items() if text is not None}
    if none:
        changes = {"running": None, "rate": None}
    asyncio.run(_limit(store, queue, tenant, changes, as_json=as_json))


async def _limit(store: Store, queue: str, tenant: str, changes: dict[str, Any], *, as_json: bool) -> None:
    async with store.opened() as client:
        policies = policies_of(client)
        await policies.limit_tenant(queue, tenant, **(_as_given(await own_limit(client, queue, tenant)) | changes))
        after, policy = await own_limit(client, queue, tenant), await policies.get(queue)
        stats = await stats_of(client, queue)
    print_limit(after, policy, as_json=as_json)
    note_unknown(queue, stats, "the limits hold all the same")


def _as_given(limit: TenantLimit) -> dict[str, Any]:
    """Limits in the words of those who set them."""
    rate = limit.rate
    return {"running": limit.running, "rate": rate and f"1/{rate.every}us, burst {rate.burst}"}


@tenant_command.command("pause")
@pair_arguments
@click.option("--lasts", type=options.lasts, metavar="D", help="For so long, such as 1h; else until it is resumed.")
@store_options
def pause_command(store: Store, queue: str, tenant: str, lasts: int | None) -> None:
    """Let no worker claim jobs of a tenant from a queue.

    For so long, or until it is resumed. Jobs that run go on, enqueues are accepted, and the turns go to others.
    """
    asyncio.run(_pause(store, queue, tenant, lasts))


async def _pause(store: Store, queue: str, tenant: str, lasts: int | None) -> None:
    async with store.opened() as client:
        stats = await stats_of(client, queue)
        length = None if lasts is None else timedelta(microseconds=lasts)
        await policies_of(client).pause(queue, tenant=tenant, lasts=length)
    how_long = "until it is resumed" if lasts is None else f"for {spell(lasts)}"
    print(f"{named(tenant)}  paused in queue {named(queue)} {how_long}")
    note_unknown(queue, stats, "the setting holds all the same")


@tenant_command.command("resume")
@pair_arguments
@store_options
def resume_command(store: Store, queue: str, tenant: str) -> None:
    """Let workers claim jobs of a tenant again."""
    asyncio.run(_resume(store, queue, tenant))


async def _resume(store: Store, queue: str, tenant: str) -> None:
    async with store.opened() as client:
        stats = await stats_of(client, queue)
        await policies_of(client).resume(queue, tenant=tenant)
    print(f"{named(tenant)}  resumed in queue {named(queue)}")
    note_unknown(queue, stats, "the setting holds all the same")
