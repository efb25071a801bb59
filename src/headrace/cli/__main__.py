"""``headrace``: the command line. A command is imported only when it is used."""

from __future__ import annotations

import click

from headrace.cli.commands import ENV_PREFIX, Root

_COMMANDS = {
    "worker": "Run the jobs of an app or queue.",
    "dev": "Run a worker while you develop: reload on changes, log every event.",
    "enqueue": "Enqueue a job.",
    "job": "Show, retry, reschedule, pause and cancel jobs.",
    "op": "Change all jobs that a filter finds, in the background.",
    "queue": "Show, limit, pause, resume and purge queues.",
    "tenant": "Show, limit, pause and resume tenants.",
    "dead": "Show, requeue and purge dead letters.",
    "janitor": "Say how long ended jobs are kept, delete the rest, and show what was deleted.",
    "table": "Look after the hot tables of an app, and protect tables.",
    "tracker": "Look at the trackers of an app, and at what they track.",
    "vault": "Look into the vault: ended jobs as files, for good.",
    "schedule": "Add, show, run, pause, resume, backfill and delete schedules.",
    "objects": "Look after the object store that sections lie in.",
    "seal": "Look after the keys that payloads and results are sealed with.",
    "shard": "Show the shards of a store that is made of several.",
    "transfer": "Move a store to another one while producers and workers go on.",
    "migrate": "Migrate a store's schema and grant access to it.",
    "workers": "List the workers that are alive.",
    "top": "Watch queues, workers and what happens, live.",
    "dashboard": "Serve the dashboard of a store.",
    "serve": "Serve health, metrics, the admin API and the dashboard of a store.",
    "health": "Check store, workers and backlog; for probes.",
    "doctor": "Check the whole set-up and say what to fix.",
    "config": "Show the settings in force, and where they come from.",
    "report": "Print what a bug report needs.",
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
