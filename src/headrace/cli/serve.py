"""``headrace serve``: health, metrics, the admin API and the dashboard of a store, without a worker."""

from __future__ import annotations

import asyncio

import click
import msgspec

from headrace.api.signals import Stopper
from headrace.cli.commands import Command
from headrace.cli.loading import Store
from headrace.cli.logs import FORMATS, configure
from headrace.cli.options import store_options
from headrace.cli.worker_process import need_web

ADDRESS = "127.0.0.1:9464"


@click.command("serve", cls=Command)
@click.argument("address", required=False)
@click.option("--writes", is_flag=True, help="Let operators change things.  [env var: HEADRACE_HTTP__WRITES]")
@click.option("--log-format", type=click.Choice(FORMATS), default="auto", help="auto: text on a terminal, else JSON.")
@store_options
async def serve_command(store: Store, address: str | None, writes: bool, log_format: str) -> None:
    """Serve health, metrics, the admin API and the dashboard of a store at ADDRESS, until it is stopped.

    ADDRESS is host:port, or a port of this machine; 127.0.0.1:9464 if neither it nor http.address is given. Other
    machines are answered only if http.tokens is set.
    """
    need_web()
    configure(log_format, "info")
    await serve(store, address, writes=writes)


async def serve(store: Store, address: str | None, *, writes: bool) -> None:
    """Serve until a signal comes."""
    from headrace.web.server import serve_alone

    async with store.opened() as client:
        http = client.settings.http
        http = msgspec.structs.replace(http, address=address or http.address or ADDRESS, writes=writes or http.writes)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(serve_alone(client, http))

            def stop() -> None:
                serving.cancel()

            with Stopper(stop):
                await asyncio.wait([serving])
