"""``headrace workers``: the workers that are alive."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headrace.admin.views import WorkerView
from headrace.cli.commands import Command
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import print_list
from headrace.cli.times import length, now
from headrace.core.durations import relative


@click.command("workers", cls=Command)
@answer_options
async def workers_command(store: Store) -> None:
    """List the workers that are alive: queues, slots, and when they were last heard from."""
    async with store.admin() as admin:
        found = await admin.workers()
    at, columns = now(), ("worker", "busy", "queues", "started", "heard from")

    def row(one: WorkerView) -> Sequence[object]:
        busy, heard = f"{one.busy} of {one.slots}", f"{length(round(one.seen_seconds * 1e6))} ago"
        return one.name, busy, ", ".join(one.queues), relative(one.started_at, at), heard

    none = "no worker is alive; start one with: headrace worker APP"
    print_list("workers", found, columns, row, empty=none)
