"""``headrace queue``: show, limit, pause, resume and purge queues."""

from __future__ import annotations

from datetime import timedelta

import click

from headrace.api.queue_health import listeners
from headrace.cli import options
from headrace.cli.audited import changing
from headrace.cli.bulk import purge
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, store_options, yes_option
from headrace.cli.output import answered, clean, counted, note, print_answer, print_table
from headrace.cli.policy_output import paused, policies_of
from headrace.cli.queue_data import queue_data
from headrace.cli.queue_limit import limit_command
from headrace.cli.queue_windows import windows_command
from headrace.cli.times import length, now
from headrace.cli.unknown_names import note_unknown, note_unknown_tasks, stats_of
from headrace.core.durations import spell
from headrace.seam.records import COUNTS, Selector
from headrace.types import JobState

_WAITING = frozenset({JobState.AVAILABLE, JobState.PAUSED})


@click.group("queue", cls=Group)
def queue_command() -> None:
    """Show, limit, pause, resume and purge queues."""


queue_command.add_command(limit_command)
queue_command.add_command(windows_command)


@queue_command.command("list")
@click.argument("names", type=options.name, nargs=-1)
@answer_options
async def list_command(store: Store, names: tuple[str, ...]) -> None:
    """List queues with their counts: all, or the named ones."""
    async with store.opened() as client:
        stats = await client.stats(names or None)
    if answered({"queues": [queue_data(queue, stats.workers) for queue in stats.queues]}):
        return
    if names and not stats.queues:
        note(f"no job was ever in {' or '.join(map(repr, names))}; 'headrace queue list' shows all queues")
        return
    if not stats.queues:
        note("no queues yet: the first enqueue creates one")
        return
    at = now()
    rows = [
        (
            queue.queue,
            paused(queue, at),
            queue.due,
            *(queue.counts[name] for name in COUNTS[1:]),
            length(queue.oldest_due_age),
            len(listeners(queue.queue, stats.workers)),
        )
        for queue in stats.queues
    ]
    counts = ("due", "scheduled", "running", "paused", "completed", "cancelled", "dead")
    print_table(("queue", "", *counts, "oldest due", "workers"), rows)


@queue_command.command("pause")
@click.argument("name", type=options.name)
@click.option("--lasts", type=options.lasts, metavar="D", help="How long, such as 1h. Default: until it is resumed.")
@click.option("--task", type=options.name, help="Only jobs of this task, by its full name.")
@store_options
async def pause_command(store: Store, name: str, lasts: int | None, task: str | None) -> None:
    """Stop workers from claiming jobs of a queue.

    Running jobs go on, and enqueues are accepted.
    """
    told = None if lasts is None else spell(lasts)
    async with changing(store, "pause queue", queue=name, task=task, lasts=told) as client:
        stats = await stats_of(client, name)
        length = None if lasts is None else timedelta(microseconds=lasts)
        await policies_of(client).pause(name, task=task, lasts=length)
    print(f"{_scope(name, task)}  paused {'until it is resumed' if told is None else f'for {told}'}")
    note_unknown(name, stats, "the setting is stored anyway")
    note_unknown_tasks(store, [] if task is None else [task], "the pause is stored anyway")


def _scope(name: str, task: str | None) -> str:
    return clean(name if task is None else f"{name}, task {task}")


@queue_command.command("resume")
@click.argument("name", type=options.name)
@click.option("--task", type=options.name, help="Only jobs of this task, if it was paused by itself.")
@store_options
async def resume_command(store: Store, name: str, task: str | None) -> None:
    """Let workers claim from a queue again."""
    async with changing(store, "resume queue", queue=name, task=task) as client:
        stats = await stats_of(client, name)
        await policies_of(client).resume(name, task=task)
    print(f"{_scope(name, task)}  resumed")
    note_unknown(name, stats, "the setting is stored anyway")
    note_unknown_tasks(store, [] if task is None else [task], "tasks paused under other names stay paused")


@queue_command.command("purge")
@click.argument("name", type=options.name)
@click.option("--task", type=options.name, help="Only jobs of this task.")
@click.option("--tenant", type=options.name, help="Only jobs of this tenant.")
@click.option("--older-than", type=options.duration, help="Only jobs enqueued at least this long ago, such as 2h.")
@yes_option
@answer_options
async def purge_command(
    store: Store, name: str, task: str | None, tenant: str | None, older_than: int | None, yes: bool
) -> None:
    """Delete the waiting jobs of a queue.

    Includes delayed and paused jobs; running and ended ones stay. Shows the number and asks first.
    """
    filters = Selector(queue=name, task=task, tenant=tenant, older_than=older_than)
    async with store.opened() as client:
        matching, deleted = await purge(client, filters, _WAITING, "waiting job", f" of queue {filters.queue}", yes=yes)
    data = {"matched": matching.number, "deleted": deleted}
    print_answer(data, f"{counted(deleted, 'waiting job')} deleted")
