"""``headrace``: one command, lazily made of many."""

from __future__ import annotations

import click

from headrace.cli.commands import ENV_PREFIX, Root

_COMMANDS = {
    "worker": "Run the jobs of an app or queue.",
    "dev": "Run the jobs of an app while you write it: reload, and every event in plain words.",
    "enqueue": "Store a job.",
    "job": "Look at jobs, run them again, cancel them.",
    "queue": "Look at queues, limit, pause, resume and purge them.",
    "tenant": "Look at the tenants of a queue, limit, pause and resume them.",
    "dead": "Look at dead letters, requeue and purge them.",
    "schedule": "Look at schedules, run, pause, resume, make up for and delete them.",
    "migrate": "Bring a store up to date, and say who may use it.",
    "health": "Check store, workers and backlog; for probes.",
    "doctor": "Check the whole set-up, and say what to do.",
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
    "[tool.headrace] in pyproject.toml; 'headrace doctor' shows those in force.",
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
