"""``headrace janitor``: how long ended jobs are kept, and what was deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import click

from headrace import App, Client, Janitor, JanitorRun, RemovedInfo
from headrace.api.signals import Stopper
from headrace.cli.audited import changing, note_change
from headrace.cli.commands import Group
from headrace.cli.loading import Store, load_target
from headrace.cli.options import answer_options, limit_option, since_option, store_options, until_option, when
from headrace.cli.output import answered, counted, note, print_fields, print_table
from headrace.cli.problems import CONFLICT, USAGE, Problem
from headrace.core.durations import micros
from headrace.errors import SafetyStop
from headrace.keeping.retention import Retention

_STATES = ("completed", "cancelled", "failed")
state_option = click.option(
    "--state", "states", type=click.Choice(_STATES), multiple=True, help="Jobs that ended so; all by default."
)
queue_option = click.option("--queue", metavar="NAME", help="Only jobs of this queue.")
task_option = click.option("--task", metavar="NAME", help="Only jobs of this task.")


_SCOPES: dict[str, Callable[[RemovedInfo], str]] = {
    "hour": lambda one: f"{one.hour:%Y-%m-%d %H:%M}",
    "day": lambda one: f"{one.hour:%Y-%m-%d}",
    "state": lambda one: one.state,
    "task": lambda one: one.task,
    "tenant": lambda one: one.tenant,
}


@click.group("janitor", cls=Group)
def janitor_command() -> None:
    """Say how long ended jobs are kept, delete the rest, and show what was deleted.

    Every worker deletes what is past its time, so these commands are for changes, for a look, and for processes that
    do nothing else.
    """


@janitor_command.command("rules")
@answer_options
async def rules_command(store: Store) -> None:
    """Show how long ended jobs are kept."""
    async with store.opened() as client:
        rules = await _janitor(store, client).rules()
    if answered({"rules": [rule.to_dict() for rule in rules]}):
        return
    rows = [
        (one.state, one.queue or "", one.task or "", one.age, _most(one.count), _most(one.bytes), _from(one.stored))
        for one in rules
    ]
    print_table(("state", "queue", "task", "age", "at most", "bytes", "from"), rows)


@janitor_command.command("keep")
@click.argument("age")
@state_option
@queue_option
@task_option
@click.option("--count", type=click.IntRange(0), metavar="N", help="Keep at most N jobs of a state.")
@click.option("--bytes", "size", type=click.IntRange(0), metavar="N", help="Keep at most N bytes of a state.")
@store_options
async def keep_command(
    store: Store, age: str, states: tuple[str, ...], queue: str | None, task: str | None, count: int | None,
    size: int | None,
) -> None:  # fmt: skip
    """Keep ended jobs for AGE: 1d, 7d, 30d, forever, or any other length.

    The rule is in the store, and counts for all workers from their next look on. A rule of a task counts before one of
    a queue, and both before one of all jobs of a state.
    """
    async with store.opened() as client:
        given = {"states": states or None, "queue": queue, "task": task, "count": count, "bytes": size}
        await note_change(client, "keep", age=age, **given)
        await _janitor(store, client).keep(age, states=states or None, queue=queue, task=task, count=count, bytes=size)
    note("the rule is stored; 'headrace janitor preview' shows what goes by it")


@janitor_command.command("forget")
@state_option
@queue_option
@task_option
@store_options
async def forget_command(store: Store, states: tuple[str, ...], queue: str | None, task: str | None) -> None:
    """Remove rules from the store. What the settings say counts again."""
    async with changing(store, "forget", states=states or None, queue=queue, task=task) as client:
        removed = await _janitor(store, client).forget(states=states or None, queue=queue, task=task)
    note(f"{counted(removed, 'rule')} removed")


@janitor_command.command("preview")
@answer_options
async def preview_command(store: Store) -> None:
    """Show what a run would delete now. Nothing changes."""
    async with store.opened() as client:
        plan = await _janitor(store, client).preview()
    _print_run(plan)


@janitor_command.command("run")
@click.option("--force", is_flag=True, help="Delete it all the same.")
@click.option("--every", metavar="DURATION", help="Go on, with a run this often, until it is stopped.")
@answer_options
async def run_command(store: Store, force: bool, every: str | None) -> None:
    """Delete what is over its bounds, and note it in the log.

    Deletes nothing if much would go by rules that are new, or if the store's clock is far ahead of the last run: look
    at the plan, then use --force. With --every, it is a process of its own that removes ended jobs as workers do.
    """
    if force and every is not None:
        raise click.UsageError("expected --force or --every, got both; run it once with --force, and then go on")
    async with changing(store, "run janitor", force=force or None, every=every) as client:
        if every is not None:
            await _go_on(client, micros(every, "--every") / 1e6)
            return
        try:
            run = await _janitor(store, client).run(force=force)
        except SafetyStop as stop:
            _print_run(stop.plan)
            raise Problem(CONFLICT, str(stop), run="headrace janitor run --force, if the plan is right") from stop
    _print_run(run)


async def _go_on(client: Client, every: float) -> None:
    settings = client.settings
    retention = Retention(
        await client.backend(), client.clock, Random(), client.observers, settings.retention,
        spare=2 * micros(settings.patience), vault=settings.vault.url is not None,
    )  # fmt: skip
    stop = asyncio.Event()
    with Stopper(stop.set):
        while not stop.is_set():
            note(f"{counted(await retention.sweep(), 'record')} deleted")
            try:
                await asyncio.wait_for(stop.wait(), every)
            except TimeoutError:
                continue


@janitor_command.command("removed")
@since_option
@until_option
@click.option(
    "--by", type=click.Choice(_SCOPES), multiple=True, default=("day", "state", "task"), help="What tells them apart."
)
@answer_options
async def removed_command(store: Store, since: int | None, until: int | None, by: tuple[str, ...]) -> None:
    """Count the ended jobs that are gone, by the day they ended, state and task, or as you like.

    They are what all runs of the janitor and all workers have removed.
    """
    async with store.opened() as client:
        found = await _janitor(store, client).removed(when(since), when(until))
    sums: dict[tuple[str, ...], tuple[int, int]] = {}
    for one in found:
        scope = tuple(_SCOPES[name](one) for name in by)
        jobs, size = sums.get(scope, (0, 0))
        sums[scope] = jobs + one.jobs, size + one.bytes
    rows = [dict(zip(by, scope, strict=True)) | {"jobs": jobs, "bytes": size} for scope, (jobs, size) in sums.items()]
    if answered({"removed": rows}):
        return
    print_table((*by, "jobs", "bytes"), [(*scope, *counts) for scope, counts in sorted(sums.items())])


@janitor_command.command("budget")
@click.option("--bytes", "size", type=click.IntRange(1), metavar="N", help="The store may take up N bytes.")
@click.option("--capacity", is_flag=True, help="The store may take up what it has: maxmemory, or its volume.")
@click.option("--off", is_flag=True, help="The store may take up any number of bytes.")
@click.option("--queue", metavar="NAME", help="The budget of this queue, with --bytes or --off.")
@click.option("--reserve", type=click.IntRange(0), metavar="N", help="PostgreSQL keeps N bytes aside for a full disk.")
@answer_options
async def budget_command(
    store: Store, size: int | None, capacity: bool, off: bool, queue: str | None, reserve: int | None
) -> None:
    """Show how many bytes the store takes up, and set how many it may.

    At 80 % of the budget there is an alert. From 85 % on new jobs are refused, while work and cleaning up go on.
    """
    if sum((size is not None, capacity, off)) > 1:
        raise click.UsageError("expected one of --bytes, --capacity and --off")
    if (queue is not None and size is None and not off) or (reserve is not None and size is None and not capacity):
        raise click.UsageError("expected --bytes N or --off with --queue, and a budget with --reserve")
    async with store.opened() as client:
        janitor = _janitor(store, client)
        if off:
            await note_change(client, "drop budget", queue=queue)
            await janitor.drop_budget(queue=queue)
        elif capacity or size is not None:
            await note_change(client, "set budget", bytes=size, queue=queue, reserve=reserve)
            await janitor.set_budget(size, queue=queue, reserve=reserve)
        usage = await janitor.usage()
    if answered(usage.to_dict()):
        return
    limit = "" if usage.limit is None else f"{usage.limit:,}"
    state = "refuses new jobs" if usage.refuses else "set" if usage.budget else "none"
    parts = [(name, f"{value:,}") for name, value in usage.parts.items()]
    parts += [(f"queue {name}", f"{share:.1%}") for name, share in usage.queues.items()]
    print_fields(
        [("used", f"{usage.used:,}"), ("of", limit), ("share", f"{usage.share:.1%}"), ("budget", state), *parts]
    )


@janitor_command.command("shrink")
@answer_options
async def shrink_command(store: Store) -> None:
    """Give back to the volume what the file of a SQLite store does not use.

    Others wait meanwhile, and for a moment the volume has to hold the store twice. Other stores do this by themselves,
    or by their own tools.
    """
    async with store.opened() as client:
        shrink = getattr(await client.backend(), "shrink", None)
        if shrink is None:
            raise Problem(USAGE, "only a SQLite store can be shrunk", cause="other stores use free space again")
        await note_change(client, "shrink")
        before, after = await shrink()
    if not answered({"before": before, "after": after}):
        note(f"{before:,} bytes before, {after:,} after")


@janitor_command.command("log")
@limit_option(20, "Show at most N runs, latest first.")
@answer_options
async def log_command(store: Store, limit: int) -> None:
    """Show what was deleted, when, and by which rule.

    The runs of workers are added up by the hour.
    """
    async with store.opened() as client:
        runs = await _janitor(store, client).log(limit)
    if answered({"runs": [run.to_dict() for run in runs]}):
        return
    if not runs:
        note("nothing was deleted yet")
    rows = [
        (f"{run.at:%Y-%m-%d %H:%M:%S}", run.by, run.runs, run.stopped, *step) for run in runs for step in _rows(run)
    ]
    print_table(("at", "by", "runs", "stopped", *_COLUMNS), rows)


_COLUMNS = ("target", "deleted", "bytes", "kept", "cutoff", "retention")


def _rows(run: JanitorRun) -> list[tuple[Any, ...]]:
    return [
        (
            step.target, step.deleted, step.bytes, "" if step.kept is None else step.kept,
            "" if step.cutoff is None else f"{step.cutoff:%Y-%m-%d %H:%M:%S}", step.retention or "",
        )
        for step in run.steps
    ] or [("", 0, 0, "", "", "")]  # fmt: skip


def _print_run(run: JanitorRun) -> None:
    if answered(run.to_dict()):
        return
    print_table(_COLUMNS, _rows(run))
    if run.stopped:
        note(f"this would be stopped: {run.stopped}")


def _janitor(store: Store, client: Client) -> Janitor:
    """That of the app, which knows its hot tables; or one without."""
    target = None if store.app is None else load_target(store.app)
    return target.janitor if isinstance(target, App) else App(client).janitor


def _most(bound: int | None) -> str:
    return "" if bound is None else f"{bound:,}"


def _from(stored: bool) -> str:
    return "store" if stored else "settings"
