"""``headrace``: the command line. A command is imported only when it is used."""

from __future__ import annotations

import click

from headrace.cli.commands import ENV_PREFIX, Root

_COMMANDS = {
    "worker": "Run the jobs of an app or queue.",
    "dev": "Run a worker while you develop: reload on changes, log every event.",
    "enqueue": "Enqueue a job.",
    "job": "Show, retry, reschedule, pause and cancel jobs.",
    "queue": "Show, limit, pause, resume and purge queues.",
    "tenant": "Show, limit, pause and resume the tenants of a queue.",
    "dead": "Show, requeue and purge dead letters.",
    "schedule": "Show, run, pause, resume, backfill and delete schedules.",
    "migrate": "Migrate a store's schema and grant access to it.",
    "health": "Check store, workers and backlog; for probes.",
    "doctor": "Check the whole set-up and say what to fix.",
    "bench": "Measure a store.",
    "completion": "Print the completion script for a shell.",
}


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        print(f"headrace {version('headrace')}")
        ctx.exit()


@click.group(
    cls=Root,
    lazy={name: (f"headrace.cli.{name}", help) for name, help in _COMMANDS.items()},
    context_settings={
        "auto_envvar_prefix": ENV_PREFIX,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="Settings come from the environment (HEADRACE_URL, HEADRACE_WORKER__CONCURRENCY …), headrace.toml or "
    "[tool.headrace] in pyproject.toml; 'headrace doctor' shows the ones in force.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def cli() -> None:
    """Durable background jobs."""


def main() -> None:
    """The console script."""
    cli.main(prog_name="headrace")


if __name__ == "__main__":
    main()
