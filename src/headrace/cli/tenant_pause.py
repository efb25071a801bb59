"""``headrace tenant pause`` and ``resume``: in a queue, or in all of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from headrace import Client
from headrace.admin.audit import Audit
from headrace.admin.upkeep import Upkeep
from headrace.cli import options
from headrace.cli.audited import note_change
from headrace.cli.commands import Command
from headrace.cli.loading import Store
from headrace.cli.options import store_options
from headrace.cli.output import counted, note
from headrace.cli.policy_output import policies_of
from headrace.cli.tenant_output import has_no_jobs, named
from headrace.cli.unknown_names import note_unknown, stats_of
from headrace.core.durations import spell, spell_exactly

F = TypeVar("F", bound=Callable[..., Any])
_NAMED = 5
"""Queues that are named in an answer."""


def place_arguments(command: F) -> F:
    """``QUEUE TENANT``, or ``TENANT`` with ``--all-queues``; given as ``queue`` (None: all) and ``tenant``."""

    def read(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str | None, str]:
        everywhere = ctx.params["all_queues"]
        if len(names) != (1 if everywhere else 2):
            wanted = "TENANT with --all-queues" if everywhere else "QUEUE and TENANT, or TENANT with --all-queues"
            raise click.UsageError(f"expected {wanted}, got {counted(len(names), 'name')}", ctx)
        return None if everywhere else options.name(names[0]), options.tenant(names[-1])

    decorated = click.argument("place", metavar="[QUEUE] TENANT", nargs=-1, callback=read)(command)
    return click.option(
        "--all-queues", is_flag=True, is_eager=True, help="In all queues, those to come included."
    )(decorated)  # fmt: skip


@click.command("pause", cls=Command)
@place_arguments
@click.option("--lasts", type=options.lasts, metavar="D", help="How long, such as 1h. Default: until it is resumed.")
@store_options
async def pause_command(store: Store, place: tuple[str | None, str], all_queues: bool, lasts: int | None) -> None:
    """Stop workers from claiming a tenant's jobs.

    In one queue, or with --all-queues in all. Running jobs go on, enqueues are accepted, and other tenants get its
    turns.
    """
    queue, tenant = place
    length = None if lasts is None else timedelta(microseconds=lasts)
    how_long = "until it is resumed" if lasts is None else f"for {spell(lasts)}"
    async with store.opened() as client:
        if queue is None:
            queues = await Upkeep(client, Audit(client)).pause_tenant(tenant, lasts and spell_exactly(lasts))
            print(f"{named(tenant)}  paused in all queues {how_long}")
            note(f"{_listed(queues)}; and queues that workers serve who start later")
        else:
            await note_change(client, "pause tenant", queue=queue, tenant=tenant, lasts=lasts and spell(lasts))
            await _pause_in(client, queue, tenant, length, how_long)


async def _pause_in(client: Client, queue: str, tenant: str, length: timedelta | None, how_long: str) -> None:
    stats = await stats_of(client, queue)
    await policies_of(client).pause(queue, tenant=tenant, lasts=length)
    idle = await has_no_jobs(client, queue, tenant)
    print(f"{named(tenant)}  paused in queue {named(queue)} {how_long}")
    if not note_unknown(queue, stats, "the setting is stored anyway") and idle:
        note(f"tenant {tenant!r} has no jobs in queue {queue!r} now; the pause is stored anyway")


@click.command("resume", cls=Command)
@place_arguments
@store_options
async def resume_command(store: Store, place: tuple[str | None, str], all_queues: bool) -> None:
    """Let workers claim jobs of a tenant again.

    In one queue, or with --all-queues wherever it is paused.
    """
    queue, tenant = place
    async with store.opened() as client:
        if queue is None:
            queues = await Upkeep(client, Audit(client)).resume_tenant(tenant)
            print(f"{named(tenant)}  resumed in all queues")
            note(_listed(queues) if queues else "it was paused in none")
        else:
            await note_change(client, "resume tenant", queue=queue, tenant=tenant)
            stats = await stats_of(client, queue)
            await policies_of(client).resume(queue, tenant=tenant)
            print(f"{named(tenant)}  resumed in queue {named(queue)}")
            note_unknown(queue, stats, "the setting is stored anyway")


def _listed(queues: Any) -> str:
    """How many queues, and the first of them."""
    names = ", ".join(map(named, queues[:_NAMED])) + (" …" if len(queues) > _NAMED else "")
    return f"{counted(len(queues), 'queue')}{': ' * bool(queues)}{names}"
