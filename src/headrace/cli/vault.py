"""``headrace vault``: ended jobs in files, for good."""

from __future__ import annotations

from typing import Any

import click

from headrace import App, Vault
from headrace.cli.audited import changing, note_change
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, since_option, store_options, until_option, when, yes_option
from headrace.cli.output import answered, confirm, counted, note, print_table
from headrace.cli.problems import FAILED, Problem


@click.group("vault", cls=Group)
def vault_command() -> None:
    """Look into the vault: ended jobs as Parquet files, for good.

    Workers write to it if vault.url is set.
    """


@vault_command.command("ls")
@click.option("--table", metavar="NAME", default="jobs", show_default=True, help="Rows of your own, of this table.")
@since_option
@until_option
@answer_options
async def ls_command(store: Store, table: str, since: int | None, until: int | None) -> None:
    """List the files with ended jobs, or with rows of your own, oldest first."""
    async with store.opened() as client:
        files = await App(client).vault.files(when(since), when(until), table=table)
    if answered({"files": [file.to_dict() for file in files]}):
        return
    print_table(("file", "state", "bytes"), [(file.key, file.state, file.bytes) for file in files])
    note(f"{counted(len(files), 'file')}, {sum(file.bytes for file in files):,} bytes")


@vault_command.command("query")
@click.argument("sql")
@since_option
@until_option
@answer_options
async def query_command(store: Store, sql: str, since: int | None, until: int | None) -> None:
    """Answer SQL (DuckDB's) over all jobs that have ended, archived or not.

    The views are jobs and attempts, and one for each table with rows of your own. Example: headrace vault query
    "SELECT task, count(*) FROM jobs GROUP BY ALL"
    """
    async with store.opened() as client:
        rows = await App(client).vault.query(sql, since=when(since), until=when(until))
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    if not answered({"rows": plain}) and plain:
        print_table([*plain[0]], [[*row.values()] for row in plain])


@vault_command.command("archive")
@store_options
async def archive_command(store: Store) -> None:
    """Archive what has ended now, as workers do."""
    async with changing(store, "archive") as client:
        note(f"{counted(await App(client).vault.archive(), 'job')} archived")


@vault_command.command("compact")
@answer_options
async def compact_command(store: Store) -> None:
    """Put the small files of hours that are over together."""
    async with changing(store, "compact vault") as client:
        done = await App(client).vault.compact()
    if not answered(done._asdict()):
        note(f"{counted(done.made, 'file')} made, {counted(done.removed, 'file')} removed")


@vault_command.command("verify")
@answer_options
async def verify_command(store: Store) -> None:
    """Read all files; fails if one is damaged, or a job is in two of them."""
    async with store.opened() as client:
        found = await App(client).vault.verify()
    if not answered(found._asdict()):
        note(f"{counted(found.files, 'file')}, {counted(found.jobs, 'job')}")
    if found.problems:
        raise Problem(FAILED, "; ".join(found.problems[:5]), cause=f"{counted(len(found.problems), 'problem')} in all")


@vault_command.command("replay")
@click.argument("where")
@click.option("--limit", type=click.IntRange(1, 100_000), metavar="N", default=1_000, help="At most N, oldest first.")
@yes_option
@answer_options
async def replay_command(store: Store, where: str, limit: int, yes: bool) -> None:
    """Run jobs again, straight from the vault: those that fit a condition in SQL.

    Example: headrace vault replay "task = 'charge' AND ended_at > '2026-11-01'"
    """
    async with store.opened() as client:
        vault: Vault = App(client).vault
        [row] = await vault.query(f"SELECT count(DISTINCT id) AS jobs FROM jobs WHERE ({where})")
        most = min(row["jobs"], limit)
        note(f"{counted(row['jobs'], 'job')} found")
        if most > 1:
            confirm(f"run {counted(most, 'job')} again?", yes=yes)
        await note_change(client, "replay", where=where, jobs=most)
        done = await vault.replay(where, limit=limit)
    if not answered({"enqueued": done.enqueued, "requeued": done.requeued, "refused": done.refused}):
        note(f"{counted(len(done.enqueued) + len(done.requeued), 'job')} will run again; {len(done.refused)} refused")


@vault_command.command("leave")
@yes_option
@store_options
async def leave_command(store: Store, yes: bool) -> None:
    """Do without a vault from now on: what is not archived may be removed. Unset vault.url first."""
    confirm("let retention remove what is not archived?", yes=yes)
    async with changing(store, "leave vault") as client:
        await App(client).vault.leave()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
