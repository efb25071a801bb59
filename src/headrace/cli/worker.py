"""``headrace worker``: run the jobs of an app or queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from headrace.api.signals import ended_by_sigterm
from headrace.cli import options
from headrace.cli.commands import ENV_PREFIX, Command
from headrace.cli.loading import load_target
from headrace.cli.logs import FORMATS, LEVELS, configure, provisional, settle
from headrace.cli.problems import USAGE, Problem
from headrace.cli.supervisor import Supervisor
from headrace.cli.worker_process import adjust, flush, help_out, need_web, run_fast, work
from headrace.core.config import Settings

log = logging.getLogger("headrace.worker")


@click.command("worker", cls=Command)
@click.argument("app", envvar=f"{ENV_PREFIX}_APP")
@click.option("--queue", type=options.name, multiple=True, help="Claim from this queue only; may be repeated.")
@click.option("--burst", is_flag=True, help="Stop when nothing is due any more.")
@click.option("--reload", is_flag=True, help="Restart when a .py file below the working directory changes.")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    metavar="N",
    default=1,
    help="Processes to run; crashed ones are restarted.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    metavar="N",
    help="Jobs to run at the same time.  [env var: HEADRACE_WORKER__CONCURRENCY]",
)
@click.option("--name", type=options.name, help="The name of the worker.  [env var: HEADRACE_WORKER__NAME]")
@click.option(
    "--http",
    metavar="ADDRESS",
    help="Serve health, metrics, the admin API and the dashboard at host:port, or a port of this machine.  "
    "[env var: HEADRACE_HTTP__ADDRESS]",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="auto",
    help="auto: as the app configures logging; if it does not, text on a terminal, else JSON.",
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", help="debug also logs every job that goes well."
)
@click.option("--log-fallback", is_flag=True, hidden=True, help="Use the format only if the app configures none.")
@click.option("--tethered", is_flag=True, hidden=True, help="Stop when stdin ends.")
@click.option("--helper", is_flag=True, hidden=True, help="Run last chances, then stop; stdin is a socket.")
@click.pass_context
def worker_command(
    ctx: click.Context,
    /,
    reload: bool,
    processes: int,
    log_format: str,
    log_level: str,
    log_fallback: bool,
    **given: Any,
) -> None:
    """Run the jobs of APP until it is stopped.

    APP is an app or a queue, as module:attr or file.py:attr; the attribute defaults to "app". On SIGTERM or SIGINT,
    running jobs may finish within the grace time (HEADRACE_WORKER__GRACE). A second signal stops the worker at once.
    """
    if reload:
        need_watchfiles()
    logs = _log_options(log_format, log_level, fallback=log_fallback)
    if reload or processes > 1:
        configure(log_format, log_level)
        children = [[*_arguments(given, place if processes > 1 else 0), *logs] for place in range(1, processes + 1)]
        ctx.exit(supervise(children, watched(given["app"]) if reload else [], given["http"]))
    run_worker(**given, log_format=log_format, log_level=log_level, log_fallback=log_fallback)


def run_worker(
    app: str,
    queue: tuple[str, ...],
    *,
    burst: bool = False,
    concurrency: int | None = None,
    name: str | None = None,
    tethered: bool = False,
    helper: bool = False,
    http: str | None = None,
    log_format: str = "auto",
    log_level: str = "info",
    log_fallback: bool = False,
) -> None:
    """Run a worker in this process. ``log_fallback``: the format is used only if the app does not configure logging;
    "auto" always means that."""
    logs = _log_options(log_format, log_level, fallback=log_fallback)
    try:
        with ended_by_sigterm(log.info):
            with provisional(log_format, log_level):
                loaded = load_target(app)
            settle(log_format, log_level, given=log_format != "auto" and not log_fallback)
            adjust(loaded, concurrency=concurrency, name=name)
            if helper:
                run_fast(help_out(loaded, queue))
            else:
                again = [*_named(app, queue), *logs]
                run_fast(work(loaded, queue, burst=burst, tethered=tethered, again=again, http=http))
    finally:
        flush()


def need_watchfiles() -> None:
    """Refuse to reload without watchfiles."""
    if find_spec("watchfiles") is None:
        raise Problem(
            USAGE,
            "reloading needs the package watchfiles, which is not installed",
            run="pip install 'headrace[dev]', or the same command without reloading",
        )


def supervise(children: list[list[str]], watch: list[Path], http: str | None = None) -> int:
    """Run workers as child processes; returns the exit code. They share one address for HTTP."""
    settings = Settings.load({} if http is None else {"http": {"address": http}}).http

    async def main() -> int:
        if settings.address is None:
            return await Supervisor(children, watch).run()
        need_web()
        from headrace.web.gather import gathered

        async with gathered(settings, len(children)) as sockets:
            told = [[*child, "--http", f"unix:{path}"] for child, path in zip(children, sockets, strict=True)]
            return await Supervisor(told, watch).run()

    return asyncio.run(main())


def watched(app: str) -> list[Path]:
    """The directories to watch for changes of an app."""
    place = Path(app.partition(":")[0])
    paths = [Path.cwd()]
    if place.suffix == ".py" and not place.resolve().is_relative_to(paths[0]):
        paths.append(place.resolve().parent)
    return paths


def _arguments(given: dict[str, Any], place: int) -> list[str]:
    """The same command line for one child."""
    arguments = _named(given["app"], given["queue"])
    if given["burst"]:
        arguments.append("--burst")
    if given["concurrency"] is not None:
        arguments += ["--concurrency", str(given["concurrency"])]
    if given["name"] is not None:
        arguments += ["--name", f"{given['name']}-{place}" if place else given["name"]]
    return arguments


def _log_options(format: str, level: str, *, fallback: bool) -> list[str]:
    return ["--log-format", format, "--log-level", level, *(["--log-fallback"] if fallback else [])]


def _named(app: str, queues: Sequence[str]) -> list[str]:
    arguments = [app]
    for queue in queues:
        arguments += ["--queue", queue]
    return arguments
