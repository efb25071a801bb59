"""``headrace dashboard``: the dashboard of a store."""

from __future__ import annotations

import click

from headrace.cli.commands import Command
from headrace.cli.loading import Store
from headrace.cli.logs import configure
from headrace.cli.options import store_options
from headrace.cli.output import note
from headrace.cli.serve import serve
from headrace.cli.worker_process import need_web


@click.command("dashboard", cls=Command)
@click.argument("address", required=False)
@click.option("--writes", is_flag=True, help="Let operators change things.  [env var: HEADRACE_HTTP__WRITES]")
@store_options
async def dashboard_command(store: Store, address: str | None, writes: bool) -> None:
    """Serve the dashboard of a store at ADDRESS, until it is stopped. Open the address in a browser.

    It is the server of "headrace serve", which has the same pages. ADDRESS is host:port, or a port of this machine;
    127.0.0.1:9464 if neither it nor http.address is given. Other machines are answered only if http.tokens is set.
    """
    need_web()
    configure("text", "info")
    if not writes:
        note("without --writes, pages show everything and change nothing")
    await serve(store, address, writes=writes)
