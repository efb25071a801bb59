"""``headrace migrate``: migrate a store's schema and grant access to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from headrace.api.connection import migrator
from headrace.cli import options
from headrace.cli.audited import changing
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, store_options
from headrace.cli.output import answered, clean, note, print_fields, print_table
from headrace.cli.problems import FAILED, OK, USAGE, Problem
from headrace.cli.times import exact, now
from headrace.text import url_without_secrets

if TYPE_CHECKING:
    from headrace.backends.postgres.schema import Found, Migrator

_PARTS = click.Choice(["producer", "worker", "janitor", "reader"])


@click.group("migrate", cls=Group)
def migrate_command() -> None:
    """Migrate a store's schema and grant access to it.

    Only PostgreSQL needs these commands. A program that owns its schema also migrates it when it opens the store,
    unless its URL says migrate=no.
    """


@migrate_command.command("status")
@answer_options
@click.pass_context
async def status_command(ctx: click.Context, /, store: Store) -> None:
    """Show which steps are applied and which are pending.

    Exit code 1 if any is pending.
    """
    url, found = _migrator(store)
    have = None if found is None else await found.found()
    if not answered(_status_data(url, found, have)):
        _print_status(url, found, have)
    ctx.exit(FAILED if have is not None and have.pending else OK)


def _status_data(url: str, found: Migrator | None, have: Found | None) -> dict[str, Any]:
    applied = [] if have is None else have.applied
    pending = [] if have is None else have.pending
    return {
        "store": url,
        "schema": found and found.schema.name,
        "found": have.version if have is not None and applied else None,
        "needed": have and have.needed,
        "current": not pending,
        "applied": [{"version": step.version, "name": step.name, "applied_at": step.at} for step in applied],
        "pending": [{"version": step.version, "name": step.name} for step in pending],
    }


def _print_status(url: str, found: Migrator | None, have: Found | None) -> None:
    if found is None or have is None:
        _tell_of_itself(url)
        return
    version, at = have.version if have.applied else "none", now()
    print_fields([("store", url), ("schema", found.schema.name), ("version", version), ("needed", have.needed)])
    print()
    rows = [(step.name, exact(step.at, at)) for step in have.applied]
    print_table(("step", "applied"), rows + [(step.name, "pending") for step in have.pending])
    if have.pending:
        note("to apply the pending steps: headrace migrate up")


@migrate_command.command("plan")
@answer_options
async def plan_command(store: Store) -> None:
    """Show what 'up' would do and which tables it would lock.

    Changes nothing.
    """
    url, found = _migrator(store)
    pending = [] if found is None else (await found.found()).pending
    steps = [{"version": step.version, "name": step.name, "effect": step.effect} for step in pending]
    if answered({"store": url, "schema": found and found.schema.name, "steps": steps}):
        return
    if found is None:
        _tell_of_itself(url)
    elif pending:
        print_table(("step", "what"), [(step.name, step.effect) for step in pending])
    else:
        note("nothing to do: the store is up to date")


@migrate_command.command("sql")
@click.option("--schema", metavar="NAME", help="The schema. Default: that of the store's URL.")
@click.option("--from", "after", type=click.IntRange(0), metavar="N", default=0, help="Only the steps after version N.")
@click.option("--bare", is_flag=True, help="Leave out BEGIN and COMMIT, for tools that open their own transaction.")
@store_options
def sql_command(store: Store, schema: str | None, after: int, bare: bool) -> None:
    """Print the steps as SQL, for psql or another tool.

    Needs no server. Run it as the role that will own the store: psql -v ON_ERROR_STOP=1 -f FILE.
    """
    url, found = _migrator(store)
    if found is None:
        note(f"{url} migrates itself when it is opened; this SQL is for PostgreSQL")
    if found is None or schema is not None:
        found = migrator(f"postgresql:///?schema={quote('headrace' if schema is None else schema, safe='')}")
    assert found is not None
    text = found.schema.sql(after, bare=bare)
    if text:
        print(text, end="")
    else:
        note(f"there are no steps after version {after}")


@migrate_command.command("up")
@click.option(
    "--lock-timeout", type=options.duration, metavar="LENGTH", default="5s",
    help="How long a step may wait for a lock, with others queued behind it; tried a few times.",
)  # fmt: skip
@store_options
async def up_command(store: Store, lock_timeout: int) -> None:
    """Apply the pending steps.

    Each step is its own transaction. Workers of this version and the previous one keep running meanwhile.
    """
    url, found = _migrator(store)
    if found is None:
        _tell_of_itself(url)
        return
    async for step in found.up(lock_timeout / 1e6):
        print(f"{step.name}  applied", flush=True)
    print(f"schema {clean(found.schema.name)} is at version {(await found.found()).version}")


@migrate_command.command("grant")
@click.argument("part", type=_PARTS)
@click.argument("role")
@click.option("--tenant", type=options.name, multiple=True, help="Only jobs of this tenant; may be repeated.")
@click.option("--any-tenant", is_flag=True, help="Jobs of all tenants; lifts an earlier --tenant.")
@store_options
async def grant_command(store: Store, part: str, role: str, tenant: tuple[str, ...], any_tenant: bool) -> None:
    """Let a database role use the store.

    A producer enqueues, looks up and cancels jobs. A worker also runs them. A reader sees everything. A janitor also
    sweeps, changes and pauses. A role may have several parts. Producers and readers can be confined to tenants.
    """
    if tenant and any_tenant:
        raise click.UsageError("expected --tenant or --any-tenant, got both")
    found = _with_roles(store)
    async with changing(store, "grant", part=part, role=role, tenants=tenant or None):
        await found.grant(part, role, tenant if tenant or any_tenant else None)
    confined = f"  {'tenant' if len(tenant) == 1 else 'tenants'} {', '.join(map(clean, tenant))}" if tenant else ""
    print(f"{clean(role)}  {part}{confined}")


@migrate_command.command("revoke")
@click.argument("part", type=_PARTS)
@click.argument("role")
@store_options
async def revoke_command(store: Store, part: str, role: str) -> None:
    """Take a part away from a role."""
    found = _with_roles(store)
    async with changing(store, "revoke", part=part, role=role):
        await found.revoke(part, role)
    print(f"{clean(role)}  no longer {part}")


def _migrator(store: Store) -> tuple[str, Migrator | None]:
    url = store.client().settings.url
    return url_without_secrets(url), migrator(url)


def _with_roles(store: Store) -> Migrator:
    url, found = _migrator(store)
    if found is None:
        raise Problem(
            USAGE, f"{url} has no roles", cause="the file system decides who may use a file",
            run="the same command with --url postgresql://…",
        )  # fmt: skip
    return found


def _tell_of_itself(url: str) -> None:
    print(f"{clean(url)} migrates itself when it is opened: there is nothing to do")
