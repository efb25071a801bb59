"""``headrace schedule add``: put a schedule into the store from the shell."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from headrace import App, Cron, Every, NewJob
from headrace.cli import options, schedule_output
from headrace.cli.audited import note_change
from headrace.cli.commands import Command
from headrace.cli.job_arguments import arguments_option, merge, new_job
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import answered, clean, note
from headrace.cli.problems import CONFLICT, Problem
from headrace.cli.times import by_clock, now
from headrace.core.durations import relative, spell
from headrace.errors import ConfigError, ScheduleNotFound
from headrace.schedules.calendar import zone
from headrace.schedules.spec import ScheduleInfo

_OF_JOBS = ("queue", "tenant", "group", "priority")
_LENGTHS = ("grace", "max_age")


@click.command("add", cls=Command)
@click.argument("task", type=options.name)
@click.option("--every", type=options.duration, metavar="D", help="Fire at equal intervals, such as 30s or 1h.")
@click.option("--cron", metavar="EXPR", help="Fire by the clock: '0 6 * * MON-FRI', @daily …")
@click.option("--tz", metavar="ZONE", help="The time zone of --cron, such as Europe/Madrid. Default: UTC.")
@click.option("--name", type=options.name, help="Unique in the store. Default: the full name of the task.")
@arguments_option
@click.option("--queue", type=options.name, help="The queue. Default: the task's own (without --app: default).")
@click.option("--tenant", type=options.name, help="The tenant that its jobs belong to.")
@click.option("--group", type=options.name, help="The group of its jobs.")
@click.option("--priority", type=int, help="Of its jobs; lower numbers run first.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue", "cancel"]),
    help="What happens while the job before is still alive. Default: allow.",
)
@click.option(
    "--misfire",
    type=click.Choice(["once", "skip", "all"]),
    help="What happens to slots that passed while no worker ran. Default: once.",
)
@click.option("--grace", type=options.duration, help="How late a slot is still in time. Default: 1m.")
@click.option("--max-age", type=options.duration, help="With --misfire all: how old a slot may be. Default: 1d.")
@click.option(
    "--delivery",
    type=click.Choice(["exactly_once", "at_most_once"]),
    help="Whether a job that was started may start again. Default: exactly_once.",
)
@click.option("--jitter", type=float, metavar="SHARE", help="From 0 to 0.5. Default: 0.1, or 0 with --cron.")
@click.option("--start", metavar="WHEN", help="No slot before this, such as 2030-01-31T06:00, in the zone of --tz.")
@click.option("--end", metavar="WHEN", help="No slot after this.")
@click.option("--max-runs", type=int, metavar="N", help="End after this many slots have fired.")
@click.option("--replace", is_flag=True, help="If there is a schedule of this name, give it this definition.")
@answer_options
async def add_command(
    store: Store, task: str, arg: tuple[tuple[str, Any], ...], args: Any, replace: bool, **given: Any
) -> None:
    """Put a schedule for TASK into the store.

    It needs --every or --cron. With --app, TASK must be a task of the app (the last part of its name is enough), and
    the arguments must fit its signature. Without --app, they are stored unchecked. A schedule that an app declares
    under the same name replaces this one when its next worker starts.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    _check_rule(chosen)
    async with store.opened(create=True) as client:
        job, _ = new_job(store, task, merge(args, arg), {name: chosen[name] for name in _OF_JOBS if name in chosen})
        app = App(client)
        spec, name = _spec(app, job, chosen)
        before = await _before(app, name)
        if before is not None and not replace:
            raise _taken(before)
        rule = given["cron"] or f"every {spell(given['every'])}"
        await note_change(client, "add schedule", schedule=name, rule=rule, tz=given["tz"], task=job.task)
        made = await app.schedules.put(spec)
        instants = await app.schedules.next(name, 1)
        workers = (await client.stats(())).workers
    done = "added" if before is None else "unchanged" if before.updated_at == made.updated_at else "replaced"
    if answered(made.to_dict() | {"status": done, "next": instants[0] if instants else None}):
        return
    print(f"{clean(name)}  {done}")
    _tell(made, instants, working=bool(workers))


def _check_rule(chosen: dict[str, Any]) -> None:
    if ("every" in chosen) == ("cron" in chosen):
        got = "both" if "every" in chosen else "neither"
        raise click.UsageError(f"expected --every 30s or --cron '0 6 * * *', got {got}")
    if "tz" in chosen and "every" in chosen:
        raise click.UsageError("--tz: an interval has no time zone; expected --cron with it")


def _spec(app: App, job: NewJob, chosen: dict[str, Any]) -> tuple[Every | Cron, str]:
    """The schedule, checked, and its name."""
    rest = {name: value for name, value in chosen.items() if name not in (*_OF_JOBS, "every", "cron")}
    rest |= {name: timedelta(microseconds=rest[name]) for name in _LENGTHS if name in rest}
    try:
        clocks = zone(chosen.get("tz", "UTC"))
        rest |= {name: _instant(f"--{name}", rest[name], clocks) for name in ("start", "end") if name in rest}
        if "cron" in chosen:
            return Cron(chosen["cron"], job, **rest), app.cron(chosen["cron"], job, **rest)
        interval = timedelta(microseconds=chosen["every"])
        return Every(interval, job, **rest), app.every(interval, job, **rest)
    except ConfigError as error:  # all of it came from the command line
        raise click.UsageError(str(error)) from None


def _instant(option: str, text: str, clocks: Any) -> datetime:
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        told = f"expected a time like 2030-01-31T06:00 or 2030-01-31T06:00+01:00, got {text!r}"
        raise click.BadParameter(told, param_hint=option) from None
    return given if given.utcoffset() is not None else given.replace(tzinfo=clocks)


async def _before(app: App, name: str) -> ScheduleInfo | None:
    try:
        return await app.schedules.get(name)
    except ScheduleNotFound:
        return None


def _taken(before: ScheduleInfo) -> Problem:
    return Problem(
        CONFLICT,
        f"there is a schedule {before.name!r} already: {before.rule}, task {before.task}",
        run="the same command with --replace, or with another --name",
    )


def _tell(made: ScheduleInfo, instants: Any, *, working: bool) -> None:
    if not made.enabled:
        note(f"it is paused: headrace schedule resume {made.name}")
    elif instants:
        note(f"next {by_clock(instants[0], schedule_output.zone_of(made))}, {relative(instants[0], now())}")
    else:
        note("it has ended: no slot is left")
    if made.jitter:
        note(f"its jobs are due up to {made.jitter:.0%} of the interval before or after their slots; see --jitter")
    if not working:
        note("no worker runs: nothing fires until one does (headrace worker APP)")
