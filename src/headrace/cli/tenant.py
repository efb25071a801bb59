"""``headrace tenant``: show, limit, pause and resume tenants."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from headrace.cli import options
from headrace.cli.audited import note_change
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, limit_option, rule, rule_option
from headrace.cli.output import answered, note
from headrace.cli.policy_output import policies_of
from headrace.cli.tenant_output import own_limit, print_limit, print_tenants
from headrace.cli.tenant_pause import pause_command, resume_command
from headrace.cli.times import now
from headrace.cli.unknown_names import note_unknown, stats_of
from headrace.seam.policy import TenantLimit

F = TypeVar("F", bound=Callable[..., Any])


@click.group("tenant", cls=Group)
def tenant_command() -> None:
    """Show, limit, pause and resume tenants.

    In a queue with rules, tenants take turns, and each can have its own limits.
    """


tenant_command.add_command(pause_command)
tenant_command.add_command(resume_command)


def pair_arguments(command: F) -> F:
    """``QUEUE TENANT``."""
    decorated = click.argument("tenant", type=options.tenant)(command)
    return click.argument("queue", type=options.name)(decorated)


@tenant_command.command("list")
@click.argument("queue", type=options.name)
@click.option("--after", type=options.tenant, metavar="TENANT", help="Only names after this one.")
@limit_option(50, "Show at most N, by name.")
@answer_options
async def list_command(store: Store, queue: str, after: str | None, limit: int) -> None:
    """List the tenants of a queue.

    Shows tenants that have jobs or their own limits, or are paused. Jobs that wait for their group are not counted as
    waiting.
    """
    async with store.opened() as client:
        policies = policies_of(client)
        policy = await policies.get(queue)
        found = await policies.tenants(queue, after=after, limit=limit + 1)
        stats, most = await stats_of(client, queue), client.limits.count_cap
    tenants, more = found[:limit], len(found) > limit
    rules = {"tenant_running": policy.tenant_running, "tenant_rate": policy.tenant_rate}
    listed = [tenant.to_dict() for tenant in tenants]
    if answered({"queue": queue, "fair": policy.fair, **rules, "tenants": listed, "more": more}):
        return
    if tenants:
        print_tenants(tenants, policy, most, now())
    elif policy.fair:
        note(f"no tenant of queue {queue!r} has jobs, a limit of its own, or is paused")
    elif not note_unknown(queue, stats, "so it has no tenants"):
        note(
            f"queue {queue!r} has no rules, so its tenants are not tracked. To give it one: headrace queue limit "
            f"{shlex.quote(queue)} --tenant-running 10"
        )
    if more:
        note(f"there are more: continue with --after {shlex.quote(tenants[-1].tenant)}, or raise --limit")


@tenant_command.command("limit")
@pair_arguments
@rule_option("--running", "N|none", "At most N of its jobs run at once.")
@rule_option("--rate", "R|none", "How many of its jobs may start: 10/s, 5/10m or '10/s, burst 20'.")
@click.option("--none", is_flag=True, help="Remove its own limits.")
@answer_options
async def limit_command(
    store: Store, queue: str, tenant: str, running: str | None, rate: str | None, none: bool
) -> None:
    """Give a tenant its own limits in a queue.

    They replace --tenant-running and --tenant-rate of the queue for this tenant. Limits that are not named stay; 'none'
    removes one.
    """
    given = {"running": running, "rate": rate}
    if none and any(text is not None for text in given.values()):
        raise click.UsageError("expected --none or limits, got both")
    if not none and all(text is None for text in given.values()):
        raise click.UsageError(
            "expected --running, --rate, or --none to remove both; 'headrace tenant list' shows the limits"
        )
    changes = {name: rule(name, text) for name, text in given.items() if text is not None}
    if none:
        changes = {"running": None, "rate": None}
    async with store.opened() as client:
        policies = policies_of(client)
        told = {name: None if to is None else str(to) for name, to in changes.items()}
        await note_change(client, "limit tenant", queue=queue, tenant=tenant, limits=told)
        await policies.limit_tenant(queue, tenant, **(_as_given(await own_limit(client, queue, tenant)) | changes))
        after, policy = await own_limit(client, queue, tenant), await policies.get(queue)
        stats = await stats_of(client, queue)
    print_limit(after, policy)
    note_unknown(queue, stats, "the limits are stored anyway")


def _as_given(limit: TenantLimit) -> dict[str, Any]:
    """Limits as users write them."""
    rate = limit.rate
    return {"running": limit.running, "rate": rate and f"1/{rate.every}us, burst {rate.burst}"}
