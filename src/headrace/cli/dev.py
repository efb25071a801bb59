"""``headrace dev``: a worker for development."""

from __future__ import annotations

import click

from headrace.cli import options
from headrace.cli.commands import ENV_PREFIX, Command
from headrace.cli.logs import configure, log
from headrace.cli.worker import need_watchfiles, run_worker, supervise, watched


@click.command("dev", cls=Command)
@click.argument("app", envvar=f"{ENV_PREFIX}_APP")
@click.option("--queue", type=options.name, multiple=True, help="Claim from this queue only; may be repeated.")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Jobs to run at the same time.")
@click.option("--no-reload", is_flag=True, help="Do not watch the code.")
@click.pass_context
def dev_command(ctx: click.Context, app: str, queue: tuple[str, ...], concurrency: int | None, no_reload: bool) -> None:
    """Run the jobs of APP while you develop it.

    Needs no server: an app without a URL keeps its jobs in ./headrace.db. Every event is logged. When a .py file below
    the working directory changes, the worker restarts; running jobs may finish first.
    """
    if not no_reload:
        need_watchfiles()
    configure("text", "debug")
    log.info("give it work from another terminal: headrace enqueue TASK --app %s", app)
    logs = ["--log-format", "text", "--log-level", "debug"]
    if no_reload:
        run_worker(app, queue, concurrency=concurrency, logs=logs)
        return
    arguments = [app, *logs]
    for name in queue:
        arguments += ["--queue", name]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    ctx.exit(supervise([arguments], watched(app)))
