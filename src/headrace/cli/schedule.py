"""``headrace schedule``: add, show, run, pause, resume, backfill and delete schedules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

import click

from headrace import App, Client
from headrace.cli import options, schedule_output
from headrace.cli.audited import note_change
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, limit_option, yes_option
from headrace.cli.output import answered, clean, confirm, counted, note, print_answer
from headrace.cli.schedule_add import add_command
from headrace.cli.times import by_clock, now, read_instant
from headrace.core.durations import relative
from headrace.errors import ConfigError, ScheduleNotFound
from headrace.schedules.coverage import coverage
from headrace.schedules.schedules import Schedules
from headrace.schedules.spec import ScheduleInfo, status

F = TypeVar("F", bound=Callable[..., Any])
_COMPLETED = 100
"""Names offered for completion."""
_PENDING = 10_000
"""Ticks searched for waiting jobs."""
_AHEAD = 1_000
"""Ticks searched for future slots."""


@click.group("schedule", cls=Group)
def schedule_command() -> None:
    """Add, show, run, pause, resume, backfill and delete schedules.

    Workers plan schedules about a minute ahead. Nothing fires while no worker runs.
    """


schedule_command.add_command(add_command)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names with this beginning. Completion must not print errors."""
    store = Store(ctx.params.get("url"), ctx.params.get("app"))
    try:
        return asyncio.run(_names(store, incomplete))
    except Exception:
        return []


async def _names(store: Store, beginning: str) -> list[str]:
    async with _opened(store) as schedules:
        found = await schedules.list(after=beginning or None, limit=_COMPLETED)
    return [one.name for one in found if one.name.startswith(beginning)]


@asynccontextmanager
async def _opened(store: Store) -> AsyncIterator[Schedules]:
    """The schedules of the store, while it is open."""
    async with store.opened() as client:
        yield App(client).schedules


async def _about_to(client: Client, action: str, name: str, **details: object) -> Schedules:
    """The schedules of the store, once it is noted what is about to be done to one of them."""
    schedules = App(client).schedules
    await schedules.get(name)
    await note_change(client, action, schedule=name, **details)
    return schedules


def name_argument(command: F) -> F:
    """``NAME``."""
    return click.argument("name", type=options.name, shell_complete=_complete)(command)


@schedule_command.command("list")
@click.option("--tenant", type=options.name, help="Only schedules of this tenant.")
@click.option("--queue", type=options.name, help="Only schedules whose jobs go to this queue.")
@limit_option(50, "Show at most N, by name.")
@answer_options
async def list_command(store: Store, tenant: str | None, queue: str | None, limit: int) -> None:
    """List schedules.

    Shows when each fires next (in its zone and in local time), what became of its last slot, and how many slots were
    planned so far.
    """
    at = now()
    async with store.opened() as client:
        schedules = App(client).schedules
        found = await schedules.list(tenant=tenant, queue=queue, limit=limit + 1)
        rows = [row for one in found[:limit] if (row := await _row(schedules, one, at)) is not None]
        workers = (await client.stats(())).workers
    more = len(found) > limit
    if answered({"schedules": [row.to_dict() for row in rows], "more": more}):
        return
    if not rows:
        note(
            "no matching schedules"
            if tenant or queue
            else "no schedules yet: app.every, app.cron or 'headrace schedule add' make them"
        )
        return
    schedule_output.print_schedules(rows, at)
    if more:
        note(f"these are the first {limit}; for more, raise --limit, or narrow with --tenant or --queue")
    if not workers:
        note("no worker runs: nothing fires until one does (headrace worker APP)")


async def _row(schedules: Schedules, schedule: ScheduleInfo, at: datetime) -> schedule_output.Row | None:
    """None if it was deleted meanwhile."""
    try:
        instants = await schedules.next(schedule.name, 1)
        last = await schedules.history(schedule.name, 1, before=at)
    except ScheduleNotFound:
        return None
    return schedule_output.Row(schedule, instants[0] if instants else None, last[0] if last else None)


@schedule_command.command("show")
@name_argument
@limit_option(10, "Show at most N past slots, latest first.", most=10_000)
@answer_options
async def show_command(store: Store, name: str, limit: int) -> None:
    """Show everything about a schedule, and its last slots.

    "waited" is how long after its slot a job started, "ran" how long it ran. Coverage is the share of these slots that
    fired and whose jobs were not cancelled.
    """
    at = now()
    async with _opened(store) as schedules:
        schedule = await schedules.get(name)
        instants = await schedules.next(name, 5)
        ticks = await schedules.history(name, limit, before=at)
        ahead = schedule_output.planned(await schedules.history(name, _AHEAD), at, _AHEAD)
    data = {
        "next": instants,
        "planned": ahead,
        "coverage": coverage(ticks).share,
        "history": [tick.to_dict() for tick in ticks],
    }
    if not answered(schedule.to_dict() | data):
        schedule_output.print_schedule(schedule, instants, ticks, ahead, at)


@schedule_command.command("next")
@name_argument
@click.option("--count", type=click.IntRange(1, 1_000), metavar="N", default=10, help="How many instants to show.")
@answer_options
async def next_command(store: Store, name: str, count: int) -> None:
    """Show when a schedule fires next.

    In its time zone and in UTC, jitter included. Says where the clocks of the zone go forward or back.
    """
    at = now()
    async with _opened(store) as schedules:
        schedule = await schedules.get(name)
        listed = schedule_output.coming(await schedules.next(name, count), schedule_output.zone_of(schedule), at)
    if answered({"name": name, "tz": schedule.tz, "status": status(schedule), "next": listed}):
        return
    if listed:
        schedule_output.print_coming(listed, schedule, at)
    if not schedule.enabled:
        note(f"it is paused: headrace schedule resume {name}")
    elif len(listed) < count:
        note("after that, it ends")


@schedule_command.command("run")
@name_argument
@answer_options
async def run_command(store: Store, name: str) -> None:
    """Run the job of a schedule once, now, and print its id.

    This is in addition to its slots, and works while it is paused.
    """
    async with store.opened() as client:
        job_id = await (await _about_to(client, "run schedule", name)).run(name)
    if not answered({"id": job_id}):
        print(job_id)
        note("queued")


@schedule_command.command("pause")
@name_argument
@click.option(
    "--cancel-pending", is_flag=True, help="Also cancel jobs that have not started; backfill does not restore them."
)
@answer_options
async def pause_command(store: Store, name: str, cancel_pending: bool) -> None:
    """Stop a schedule from firing until it is resumed.

    Slots are planned about a minute ahead; their jobs still run, unless you give --cancel-pending.
    """
    async with store.opened() as client:
        schedules = await _about_to(client, "pause schedule", name, cancel_pending=cancel_pending or None)
        await schedules.disable(name)
        waiting = await _waiting(schedules, name)
        if cancel_pending:
            await schedules.disable(name, cancel_pending=True)
    if answered({"name": name, "enabled": False, "pending": waiting, "cancelled": waiting * cancel_pending}):
        return
    print(f"{clean(name)}  paused")
    if waiting:
        gone = "cancelled; their slots count as fired, and backfill does not bring them back"
        fate = gone if cancel_pending else "still run, unless paused with --cancel-pending"
        note(f"{counted(waiting, 'job')} planned already: {fate}")


async def _waiting(schedules: Schedules, name: str) -> int:
    """How many jobs of its slots have not started."""
    return sum(tick.state == "available" for tick in await schedules.history(name, _PENDING))


@schedule_command.command("resume")
@name_argument
@answer_options
async def resume_command(store: Store, name: str) -> None:
    """Let a schedule fire again.

    It goes on with its next slot. Slots that passed meanwhile do not fire, unless you backfill.
    """
    async with store.opened() as client:
        schedules = await _about_to(client, "resume schedule", name)
        schedule = await schedules.enable(name)
        instants = await schedules.next(name, 1)
    if answered({"name": name, "enabled": True, "next": instants[0] if instants else None}):
        return
    print(f"{clean(name)}  resumed")
    if instants:
        note(f"next {by_clock(instants[0], schedule_output.zone_of(schedule))}, {relative(instants[0], now())}")
    else:
        note("it has ended: no slot is left")


@schedule_command.command("backfill")
@name_argument
@click.option(
    "--since", required=True, metavar="WHEN", help="The start: 2030-01-31T06:00, or how long ago, such as 6h."
)
@click.option("--until", metavar="WHEN", help="The end. Default: now.")
@click.option("--dry-run", is_flag=True, help="Only count the slots.")
@yes_option
@answer_options
async def backfill_command(store: Store, name: str, since: str, until: str | None, dry_run: bool, yes: bool) -> None:
    """Fire past slots that did not fire.

    These are the slots between --since and --until that were missed or skipped, or that passed while the schedule was
    paused or not there yet. Times without an offset are in the schedule's zone. Shows the number and asks first. Doing
    it twice fires nothing twice.
    """
    async with store.opened() as client:
        schedules = App(client).schedules
        schedule = await schedules.get(name)
        clocks = schedule_output.zone_of(schedule)
        first = _instant("--since", since, schedule)
        last = now() if until is None else _instant("--until", until, schedule)
        if last < first:
            order = f"{by_clock(last, clocks)} is before {by_clock(first, clocks)}"
            raise click.BadParameter(f"expected an instant after --since; {order}", param_hint="--until")
        slots = await schedules.backfill(name, first, last, dry_run=True)
        where = f"from {by_clock(first, clocks)} to {by_clock(last, clocks)}"
        fired = 0
        if slots and not dry_run:
            note(f"{counted(slots, 'slot')} {where} did not fire")
            confirm(f"fire {counted(slots, 'slot')} of {name} now?", yes=yes)
            await note_change(client, "backfill schedule", schedule=name, since=first, until=last, slots=slots)
            fired = await schedules.backfill(name, first, last)
    data = {"name": name, "since": first, "until": last, "slots": slots, "fired": fired}
    plain = f"{counted(slots, 'slot')} {where}" if dry_run else f"{counted(fired, 'slot')} fired"
    print_answer(data, plain)


def _instant(option: str, text: str, schedule: ScheduleInfo) -> datetime:
    try:
        return read_instant(text, now(), schedule_output.zone_of(schedule))
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


@schedule_command.command("delete")
@name_argument
@yes_option
@answer_options
async def delete_command(store: Store, name: str, yes: bool) -> None:
    """Delete a schedule.

    Cancels its jobs that have not started; a running one goes on. Asks first. If an app declares the schedule, its next
    worker creates it again.
    """
    async with store.opened() as client:
        schedules = App(client).schedules
        schedule = await schedules.get(name)
        waiting = await _waiting(schedules, name)
        note(f"{name} ({schedule.rule}, {counted(schedule.runs, 'slot')} planned so far) will be deleted")
        if waiting:
            note(f"{counted(waiting, 'waiting job')} will be cancelled")
        confirm(f"delete schedule {name}?", yes=yes)
        await note_change(client, "delete schedule", schedule=name)
        await schedules.delete(name)
    data = {"name": name, "deleted": True, "cancelled": waiting}
    print_answer(data, f"{clean(name)}  deleted")
