"""``headrace dev``: a worker for development."""

from __future__ import annotations

import os

import click

from headrace.cli import options
from headrace.cli.commands import ENV_PREFIX, Command
from headrace.cli.logs import log, provisional
from headrace.cli.serve import ADDRESS
from headrace.cli.worker import need_watchfiles, run_worker, supervise, watched
from headrace.cli.worker_process import has_web
from headrace.core.config import Settings
from headrace.errors import ConfigError

_WRITES = "HEADRACE_HTTP__WRITES"


@click.command("dev", cls=Command)
@click.argument("app", envvar=f"{ENV_PREFIX}_APP")
@click.option("--queue", type=options.name, multiple=True, help="Claim from this queue only; may be repeated.")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Jobs to run at the same time.")
@click.option("--no-reload", is_flag=True, help="Do not watch the code.")
@click.option("--http", metavar="ADDRESS", help="Serve the dashboard here.  [env var: HEADRACE_HTTP__ADDRESS]")
@click.pass_context
def dev_command(
    ctx: click.Context, app: str, queue: tuple[str, ...], concurrency: int | None, no_reload: bool, http: str | None
) -> None:
    """Run the jobs of APP while you develop it, with the dashboard beside it.

    Needs no server: an app without a URL keeps its jobs in ./headrace.db. Every event is logged. When a .py file below
    the working directory changes, the worker restarts; running jobs may finish first. The dashboard is at
    127.0.0.1:9464, or at a free port if that is taken, and may change things.
    """
    if not no_reload:
        need_watchfiles()
    with provisional("text", "debug"):
        log.info("give it work from another terminal: headrace enqueue TASK --app %s", app)
        http = http or _dashboard_address()
        if http is not None:
            log.info("the dashboard: http://%s/", http)
    os.environ.setdefault(_WRITES, "true")
    if no_reload:
        run_worker(
            app, queue, concurrency=concurrency, http=http, log_format="text", log_level="debug", log_fallback=True
        )
        return
    arguments = [app, "--log-format", "text", "--log-level", "debug", "--log-fallback"]
    for name in queue:
        arguments += ["--queue", name]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    ctx.exit(supervise([arguments], watched(app), http))


def _dashboard_address() -> str | None:
    """Where the dashboard is served; None: nowhere, or where the settings say."""
    if Settings.load().http.address is not None:
        return None
    if not has_web():
        log.info("there is no dashboard: pip install 'headrace[web]'")
        return None
    from headrace.web.address import LOOPBACK, parse_address

    try:
        parse_address(ADDRESS).listen().close()
    except ConfigError:
        with parse_address("0").listen() as free:
            return f"{LOOPBACK}:{free.getsockname()[1]}"
    return ADDRESS
