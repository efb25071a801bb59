"""``headrace queue windows``: the windows of a store that keeps jobs on one server and gives them out from another."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headrace.cli import options
from headrace.cli.commands import Command
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import print_list
from headrace.cli.problems import Problem
from headrace.cli.times import length
from headrace.seam.windows import WindowState

_COUNTS = ("waiting", "pending", "overdue", "consumers", "lag", "delayed")


@click.command("windows", cls=Command)
@click.argument("names", type=options.name, nargs=-1)
@click.option("--horizon", type=options.duration, default="60s", help="Count the delayed jobs that are due within it.")
@click.option("--max-pending", type=click.IntRange(0), help="Fail if more jobs of a queue were given out.")
@answer_options
async def windows_command(store: Store, names: tuple[str, ...], horizon: int, max_pending: int | None) -> None:
    """Show the windows of queues: what they have, gave out and are behind with."""
    async with store.opened() as client:
        windows = (await client.backend()).windows
        if windows is None:
            raise Problem(
                2, "this store has no windows", cause="it gives out its jobs itself", run="headrace queue list"
            )
        found = await windows.look(list(names) or None, horizon)
        at = await (await client.backend()).now()

    def row(one: WindowState) -> Sequence[object]:
        next_in = length(None if one.next_at is None else max(0, one.next_at - at))
        return one.queue, one.mode, *(getattr(one, name) for name in _COUNTS), next_in, one.soon

    columns, empty = ("queue", "", *_COUNTS, "next in", "due soon"), "no windows yet: the first claim makes one"
    print_list("windows", found, columns, row, empty=empty)
    if max_pending is not None and (many := [one for one in found if one.pending > max_pending]):
        worst = max(many, key=lambda one: one.pending)
        raise Problem(
            1, f"{worst.queue!r}: {worst.pending:,} jobs were given out and not settled; {max_pending:,} may be"
        )
