"""``headrace dead``: show, count, export, requeue and purge dead letters."""

from __future__ import annotations

import asyncio
from typing import IO
from uuid import UUID

import click
import msgspec
from msgspec.structs import replace

from headrace import Client
from headrace.cli import bulk, options
from headrace.cli.audited import note_jobs, note_selected
from headrace.cli.commands import Group
from headrace.cli.dead_export import classes, dead_letters, line
from headrace.cli.job import id_argument, list_jobs, not_found, show_job
from headrace.cli.job_output import in_words
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, filter_options, limit_option, store_options, yes_option
from headrace.cli.output import confirm, counted, note, print_answer, print_list, progress
from headrace.cli.problems import CONFLICT, Problem
from headrace.seam.records import Delete, JobId, Requeue, Selector
from headrace.types import JobState

_DEAD = frozenset({JobState.FAILED})
_NOUN = "dead letter"
_MOST = 10_000
"""Most that one command requeues."""
_UNASKED = 100
"""Up to this many matches are requeued without asking."""


@click.group("dead", cls=Group)
def dead_command() -> None:
    """Show, requeue and purge dead letters.

    A dead letter is a job that has failed for good. It is kept with its errors until it is requeued, purged, or removed
    by retention.
    """


@dead_command.command("list")
@filter_options()
@limit_option(50, "Show at most N, newest first.")
@answer_options
async def list_command(store: Store, filters: Selector, limit: int) -> None:
    """List dead letters, newest first."""
    dead = replace(filters, states=_DEAD)
    await list_jobs(store, dead, limit, empty="no dead letters")


@dead_command.command("show")
@id_argument
@answer_options
async def show_command(store: Store, job_id: JobId) -> None:
    """Show a dead letter and its errors."""
    await show_job(store, job_id, state=JobState.FAILED)


@dead_command.command("export")
@click.argument("file", type=click.File("w", "utf-8", atomic=True), default="-")
@filter_options()
@store_options
async def export_command(store: Store, file: IO[str], filters: Selector) -> None:
    """Write dead letters to FILE, or to standard output, as lines of JSON, oldest first.

    Each line has all that is known of one: its arguments, its failures, and its sections as they are stored, in base64;
    under "lost", why others cannot be had: their objects are gone or damaged.
    """
    count = lost = 0
    async with store.opened() as client:
        async for record in dead_letters(client, filters):
            told = line(client, record)
            file.write(msgspec.json.encode(told).decode() + "\n")
            count += 1
            lost += bool(told["lost"])
    note(f"{counted(count, _NOUN)} exported")
    if lost:
        note(f"{counted(lost, _NOUN)} without all sections: their objects are gone or damaged")


@dead_command.command("reasons")
@filter_options()
@answer_options
async def reasons_command(store: Store, filters: Selector) -> None:
    """Count dead letters by what went wrong: queue, task, reason and type of error, most frequent first."""
    async with store.opened() as client:
        found = await classes(client, filters)
    columns = ("queue", "task", "reason", "error", "jobs")
    print_list("reasons", found, columns, lambda one: list(one.values()))


@dead_command.command("requeue")
@click.argument("job_ids", metavar="[ID]...", type=options.job_id, nargs=-1)
@filter_options()
@click.option("--all", is_flag=True, help="All dead letters, up to --limit.")
@limit_option(1_000, "At most N, oldest first.", most=_MOST)
@click.option("--rate", type=click.FloatRange(0.1, 10_000), metavar="N", default=100.0, help="Jobs per second.")
@yes_option
@answer_options
async def requeue_command(
    store: Store,
    job_ids: tuple[JobId, ...],
    filters: Selector,
    all: bool,
    limit: int,
    rate: float,
    yes: bool,
) -> None:
    """Run dead letters again.

    Takes ids, filters or --all; oldest first. Requeued jobs start over as if new. --rate and --limit keep old jobs from
    flooding the queue. Asks first with --all, and if filters match more than 100. If another job holds its key by now,
    a dead letter stays where it is.
    """
    given = [bool(job_ids), filters != Selector(), all]
    if sum(given) > 1:
        raise click.UsageError("expected ids, filters or --all, got more than one of them")
    if not any(given):
        raise click.UsageError("expected ids, filters such as --queue, or --all")
    async with store.opened() as client:
        if job_ids:
            met = await _requeue_named(client, await _named(client, job_ids), rate)
        else:
            met = await _requeue_oldest(client, filters, limit, rate, yes=yes)
    requeued = [job_id for job_id, changed in met.items() if changed]
    refused = [job_id for job_id, changed in met.items() if not changed]
    data = {"requeued": [UUID(bytes=i) for i in requeued], "refused": [UUID(bytes=i) for i in refused]}
    print_answer(data, f"{counted(len(requeued), _NOUN)} requeued")
    if refused:
        shown = ", ".join(str(UUID(bytes=i)) for i in refused[:3])
        raise Problem(
            CONFLICT,
            f"{counted(len(refused), _NOUN)} not requeued: {shown}{' …' * (len(refused) > 3)}",
            cause="another job holds the key by now, or the job has changed meanwhile",
            run=f"headrace job show {UUID(bytes=refused[0])}",
        )


async def _named(client: Client, job_ids: tuple[JobId, ...]) -> list[JobId]:
    chosen = list(dict.fromkeys(job_ids))
    for job_id in chosen:
        record = await client.fetch(job_id, frozenset())
        if record is None:
            raise not_found(job_id)
        if record.state is not JobState.FAILED:
            raise Problem(
                CONFLICT,
                f"job {UUID(bytes=job_id)} is not a dead letter: it is {in_words(record.state)}; nothing was requeued",
                run=f"headrace job show {UUID(bytes=job_id)}",
            )
    return chosen


async def _requeue_named(client: Client, chosen: list[JobId], rate: float) -> dict[JobId, bool]:
    """For each of them, whether it was requeued."""
    met: dict[JobId, bool] = {}
    await note_jobs(client, "requeue", chosen)
    pace = _Pace(rate)
    with progress("requeueing", len(chosen)) as advance:
        for start in range(0, len(chosen), pace.step):
            await pace.wait()
            part = chosen[start : start + pace.step]
            altered = await client.alter(Selector(ids=part, states=_DEAD), Requeue())
            met |= dict.fromkeys(part, False) | {one.id: one.changed for one in altered}
            advance(len(part))
    return met


async def _requeue_oldest(
    client: Client, filters: Selector, limit: int, rate: float, *, yes: bool
) -> dict[JobId, bool]:
    """For each matching job, whether it was requeued. Goes by rising id: a job that fails again is not met twice."""
    matching = await bulk.count(client, filters, _DEAD)
    most = min(limit, matching.number)
    verb = "matches" if matching.number == 1 else "match"
    note(f"{matching.of(_NOUN)} {verb}" + (f"; requeueing {most:,}, oldest first" if most else ""))
    if most > (0 if filters == Selector() else _UNASKED):
        confirm(f"requeue {counted(most, _NOUN)}?", yes=yes)
    met: dict[JobId, bool] = {}
    above: JobId | None = None
    if most:
        await note_selected(client, "requeue dead letters", filters, most)
    pace = _Pace(rate)
    with progress("requeueing", most) as advance:
        while len(met) < most:
            await pace.wait()
            step = min(pace.step, most - len(met))
            altered = await client.alter(replace(filters, states=_DEAD, limit=step, above=above), Requeue())
            met |= {one.id: one.changed for one in altered}
            advance(len(altered))
            if len(altered) < step:
                break
            above = altered[-1].id
    return met


class _Pace:
    """Splits a rate into steps of a tenth of a second."""

    def __init__(self, rate: float) -> None:
        self.step = max(1, int(rate / 10))
        self._seconds = self.step / rate
        self._due = 0.0

    async def wait(self) -> None:
        """Wait until the next step may be taken."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._due - loop.time()))
        self._due = loop.time() + self._seconds


@dead_command.command("purge")
@click.argument("job_ids", metavar="[ID]...", type=options.job_id, nargs=-1)
@filter_options()
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N, oldest first.")
@yes_option
@answer_options
async def purge_command(
    store: Store, job_ids: tuple[JobId, ...], filters: Selector, limit: int | None, yes: bool
) -> None:
    """Delete dead letters for good.

    Takes ids or filters; without either, all of them. Shows the number and asks first.
    """
    if job_ids and filters != Selector():
        raise click.UsageError("expected ids or filters, got both")
    async with store.opened() as client:
        if job_ids:
            matched, deleted = len(job_ids), await _delete(client, await _named(client, job_ids), yes=yes)
        else:
            matching, deleted = await bulk.purge(client, filters, _DEAD, _NOUN, yes=yes, limit=limit)
            matched = matching.number
    print_answer({"matched": matched, "deleted": deleted}, f"{counted(deleted, _NOUN)} deleted")


async def _delete(client: Client, chosen: list[JobId], *, yes: bool) -> int:
    note(f"{counted(len(chosen), _NOUN)} will be deleted")
    confirm(f"delete {counted(len(chosen), _NOUN)}?", yes=yes)
    await note_jobs(client, "delete", chosen)
    return sum(one.changed for one in await client.alter(Selector(ids=chosen), Delete()))
