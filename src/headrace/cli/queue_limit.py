"""``headrace queue limit``: show and change the rules of a queue."""

from __future__ import annotations

from typing import Any

import click

from headrace import Client
from headrace.cli import options
from headrace.cli.audited import note_change
from headrace.cli.commands import ENV_PREFIX, Command
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, rule, rule_option
from headrace.cli.output import answered, note
from headrace.cli.policy_output import Load, policies_of, policy_data, print_policy, print_store, task_rates
from headrace.cli.times import now
from headrace.cli.unknown_names import note_unknown, note_unknown_tasks, stats_of


def task_rate(text: str) -> tuple[str, Any]:
    """``TASK=RATE`` as a pair; a rate of None removes it."""
    task, equals, rate = text.rpartition("=")
    if not (task and equals):
        raise click.BadParameter(f"expected TASK=RATE, such as shop.send=10/s, got {text!r}")
    return options.name(task), rule("rate", rate)


@click.command("limit", cls=Command)
@click.argument("name", metavar="[QUEUE]", type=options.name, required=False)
@click.option(
    "--store",
    "whole",
    is_flag=True,
    envvar=f"{ENV_PREFIX}_QUEUE_LIMIT_STORE",
    help="The whole store; its only rule is --depth.",
)
@rule_option("--running", "N|none", "At most N of its jobs run at once.")
@rule_option("--rate", "R|none", "How many jobs may start: 100/s, 5/10m or '100/s, burst 20'.")
@rule_option("--tenant-running", "N|none", "At most N jobs of each tenant run at once.")
@rule_option("--tenant-rate", "R|none", "How many jobs of each tenant may start.")
@click.option(
    "--task-rate",
    type=task_rate,
    metavar="TASK=R|none",
    multiple=True,
    help="How many jobs of this task (full name) may start; may be repeated.",
)
@rule_option("--tenant-workers", "N|none", "At most N workers have jobs of one tenant at a time.")
@rule_option("--tenant-batch", "N|none", "Tenants take turns, with at most N jobs per turn. Default: 10.")
@rule_option("--ageing", "D|none", "Waiting this long, such as 10m, counts as one step of priority.")
@rule_option("--group-running", "N|none", "At most N jobs of a group run at once. Default: 1.")
@rule_option("--depth", "N|none", "At most N jobs wait; further enqueues are refused.")
@answer_options
async def limit_command(
    store: Store,
    name: str | None,
    whole: bool,
    task_rate: tuple[tuple[str, Any], ...],
    **given: str | None,
) -> None:
    """Show or change the rules of a queue.

    Rules that are not named stay; 'none' removes one. Rules live in the store: every worker follows a change from its
    next claim on. With the first rule other than --group-running and --depth, the tenants of the queue take turns.
    """
    rules = {key: rule(key, text) for key, text in given.items() if text is not None}
    if whole:
        if name is not None or task_rate or rules.keys() - {"depth"}:
            raise click.UsageError("expected --store alone or with --depth: the store has no other rule")
        await _limit_store(store, rules)
    elif name is None:
        raise click.UsageError("expected a queue, or --store for the whole store; 'headrace queue list' shows queues")
    else:
        await _limit(store, name, rules, dict(task_rate))


async def _limit(store: Store, name: str, rules: dict[str, Any], rates: dict[str, Any]) -> None:
    async with store.opened() as client:
        if rates:
            rules["task_rates"] = await _merged(client, name, rates)
        policies = policies_of(client)
        if rules:
            await note_change(client, "limit queue", queue=name, rules={rule: str(to) for rule, to in rules.items()})
        info = await policies.set(name, **rules) if rules else await policies.get(name)
        stats = await stats_of(client, name)
    load = Load.of(name, stats)
    if answered(policy_data(info, load)):
        return
    print_policy(info, load, now())
    note_unknown_tasks(store, [task for task in rates if rates[task] is not None], "its rate is stored anyway")
    bare = not info.fair and info.depth is None and info.group_running == 1
    unknown = note_unknown(name, stats, "so it has no rules" if bare and not rules else "its rules are stored anyway")
    if bare and not unknown:
        note(
            f"queue {name!r} has no rules: workers claim its jobs by priority and due time, and any number may wait. "
            "'headrace queue limit --help' lists the rules"
        )


async def _merged(client: Client, queue: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The rates of all tasks after these changes."""
    after = await task_rates(client, queue) | changes
    return {task: rate for task, rate in after.items() if rate is not None}


async def _limit_store(store: Store, rules: dict[str, Any]) -> None:
    async with store.opened() as client:
        policies = policies_of(client)
        if rules:
            depth = (await policies.limit_store(rules["depth"])).depth
        else:
            depth = next((one.depth for one in await policies.list() if not one.queue), None)
        load = Load.of_store(await client.stats())
    if not answered({"depth": depth, "now": {"running": load.running, "waiting": load.waiting}}):
        print_store(depth, load)
