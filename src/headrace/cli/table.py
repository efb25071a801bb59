"""``headrace table``: hot tables of an app, and tables that nobody may touch."""

from __future__ import annotations

from typing import Any

import click

from headrace import App, Table, TableSweep
from headrace.cli.audited import changing
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, store_options
from headrace.cli.output import answered, note, print_fields, print_list, print_table
from headrace.cli.problems import CONFLICT, NOT_FOUND, Problem
from headrace.errors import SafetyStop

_COLUMNS = ("table", "deleted", "archived", "kept", "waiting", "cutoff", "retention", "stopped")


@click.group("table", cls=Group)
def table_command() -> None:
    """Look after the hot tables of an app, and protect tables.

    Workers delete their old rows, so these commands are for a look, and for what a sweep did not dare.
    """


@table_command.command("list")
@answer_options
async def list_command(store: Store) -> None:
    """List the hot tables of an app: rows, bytes, and what goes next."""
    async with store.opened():
        found = [(name, await table.stats()) for name, table in store.loaded().tables.items()]
    if answered({"tables": [{"table": name} | stats.to_dict() for name, stats in found]}):
        return
    rows = [(name, one.rows, one.bytes, one.expired, one.approaching, one.waiting) for name, one in found]
    print_table(("table", "rows", "bytes", "expired", "approaching", "waiting"), rows)


@table_command.command("show")
@click.argument("name")
@answer_options
async def show_command(store: Store, name: str) -> None:
    """Show one table, with the ages of its rows by the day."""
    async with store.opened():
        stats = await _table(store.loaded(), name).stats()
    if answered({"table": name} | stats.to_dict()):
        return
    ages = [("without an age" if day < 0 else f"{day} d old", f"{count:,}") for day, count in stats.ages.items()]
    print_fields(
        [
            ("rows", f"{stats.rows:,}"), ("bytes", f"{stats.bytes:,}"), ("expired", f"{stats.expired:,}"),
            ("approaching", f"{stats.approaching:,}"), ("waiting", f"{stats.waiting:,}"), *ages,
        ]
    )  # fmt: skip


@table_command.command("preview")
@click.argument("name")
@answer_options
async def preview_command(store: Store, name: str) -> None:
    """Show what a sweep would delete now. Nothing changes."""
    async with store.opened():
        _print(await _table(store.loaded(), name).preview())


@table_command.command("sweep")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete it all the same.")
@answer_options
async def sweep_command(store: Store, name: str, force: bool) -> None:
    """Delete old rows, after they were archived, and note it in the log of the janitor."""
    table = _table(store.loaded(), name)
    async with changing(store, "sweep table", table=name, force=force):
        try:
            swept = await table.sweep(force=force)
        except SafetyStop as stop:
            _print(stop.plan)
            raise Problem(
                CONFLICT, str(stop), run=f"headrace table sweep {name} --force, if the plan is right"
            ) from stop
    _print(swept)


@table_command.command("protect")
@click.argument("names", nargs=-1, required=True)
@store_options
async def protect_command(store: Store, names: tuple[str, ...]) -> None:
    """Let no process delete rows of these tables, whatever its rules say.

    A name is TABLE or SCHEMA.TABLE.
    """
    async with changing(store, "protect tables", tables=list(names)) as client:
        await App(client).janitor.protect(*map(_parts, names))
    note(f"no rule deletes rows of {', '.join(names)}")


@table_command.command("unprotect")
@click.argument("name")
@store_options
async def unprotect_command(store: Store, name: str) -> None:
    """Protect a table no longer."""
    async with changing(store, "unprotect table", table=name) as client:
        if not await App(client).janitor.unprotect(_parts(name)):
            raise Problem(NOT_FOUND, f"{name} is not protected", run="headrace table protected")
    note(f"rules may delete rows of {name}")


@table_command.command("protected")
@answer_options
async def protected_command(store: Store) -> None:
    """List the tables that are protected in the store."""
    async with store.opened() as client:
        names = await App(client).janitor.protected()
    print_list("protected", names, ("table",), lambda name: (name,))


def _parts(name: str) -> tuple[str, ...]:
    schema, point, table = name.partition(".")
    return (schema, table) if point else (name,)


def _table(app: App, name: str) -> Table[Any]:
    if name not in app.tables:
        known = ", ".join(app.tables) or "none"
        raise Problem(NOT_FOUND, f"the app declares no table {name!r}", cause=f"it declares: {known}")
    return app.tables[name]


def _print(swept: TableSweep) -> None:
    if answered(swept.to_dict()):
        return
    row = (
        swept.table, swept.deleted, swept.archived, "" if swept.kept is None else swept.kept, swept.waiting,
        f"{swept.cutoff:%Y-%m-%d %H:%M:%S}",
        swept.retention, swept.stopped,
    )  # fmt: skip
    print_table(_COLUMNS, [row])
