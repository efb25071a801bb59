"""``headrace workers``: the workers that are alive."""

from __future__ import annotations

import click

from headrace import Admin
from headrace.cli.commands import Command
from headrace.cli.loading import Store
from headrace.cli.options import json_option, store_options
from headrace.cli.output import note, print_json, print_table
from headrace.cli.times import length, now, relative


@click.command("workers", cls=Command)
@json_option
@store_options
async def workers_command(store: Store, as_json: bool) -> None:
    """List the workers that are alive: queues, slots, and when they were last heard from."""
    async with store.opened() as client:
        found = await Admin(client).workers()
    if as_json:
        print_json({"workers": found})
        return
    if not found:
        note("no worker is alive; start one with: headrace worker APP")
        return
    at = now()
    rows = [
        [
            one.name,
            f"{one.busy} of {one.slots}",
            ", ".join(one.queues),
            relative(one.started_at, at),
            _ago(one.seen_seconds),
        ]
        for one in found
    ]
    print_table(["worker", "busy", "queues", "started", "heard from"], rows)


def _ago(seconds: float) -> str:
    return f"{length(round(seconds * 1e6))} ago"
