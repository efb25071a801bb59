"""``headrace shard``: the shards of a store that is made of several."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headrace.api.connection import open_backend
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import print_list
from headrace.cli.problems import USAGE, Problem
from headrace.routing.sharded import Router, ShardState


@click.group("shard", cls=Group)
def shard_command() -> None:
    """Show the shards of a store that is made of several.

    The URL names them, and says which jobs go where: "main = sqlite:///a.db | bulk = sqlite:///b.db | mail=bulk,
    *=main".
    """


@shard_command.command("list")
@answer_options
async def list_command(store: Store) -> None:
    """List the shards: which jobs go there, and how many there are."""
    backend = open_backend(store.client().settings.url)
    if not isinstance(backend, Router):
        raise Problem(
            USAGE,
            "expected a URL with shards, got one store",
            run='the same command with --url "main = sqlite:///a.db | bulk = sqlite:///b.db | mail=bulk, *=main"',
        )
    try:
        await backend.open()
        shards = await backend.states()
    finally:
        await backend.close()

    def row(one: ShardState) -> Sequence[object]:
        return one.name, ", ".join(one.routes), one.waiting, one.running, one.copies, one.error or "up"

    print_list("shards", shards, ("shard", "routes", "waiting", "running", "copies", "state"), row)
