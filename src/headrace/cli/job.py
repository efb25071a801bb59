"""``headrace job``: show, retry, reschedule, pause and cancel jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

import click
from msgspec.structs import replace

from headrace import Client, JobInfo, Why
from headrace.cli import options
from headrace.cli.audited import note_jobs
from headrace.cli.commands import Group
from headrace.cli.job_output import in_full, in_words, print_job, print_jobs, remedy, summary
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, filter_options, limit_option, store_options
from headrace.cli.output import answered, clean, note
from headrace.cli.problems import CONFLICT, NOT_FOUND, Problem
from headrace.seam.records import Altered, Cancel, Change, JobId, JobKey, Pause, Requeue, Reschedule, Resume, Selector
from headrace.types import JobState

_SEARCHED = 100_000
"""Jobs that a search looks at."""
_LOOKED_AT, _NAMED = 1_000, 20
"""Jobs that are looked at for their reasons, and reasons that a message names."""

F = TypeVar("F", bound=Callable[..., Any])


@click.group("job", cls=Group)
def job_command() -> None:
    """Show, retry, reschedule, pause and cancel jobs."""


def id_argument(command: F) -> F:
    """``ID``."""
    return click.argument("job_id", metavar="ID", type=options.job_id)(command)


def ids_argument(command: F) -> F:
    """``ID...``."""
    return click.argument("job_ids", metavar="ID...", type=options.job_id, nargs=-1, required=True)(command)


@job_command.command("list")
@click.argument("filter", metavar="[FILTER]...", nargs=-1)
@filter_options(states=True)
@limit_option(50, "Show at most N, newest first.")
@answer_options
async def list_command(store: Store, filter: tuple[str, ...], filters: Selector, limit: int) -> None:
    """List jobs, newest first.

    FILTER is terms such as queue:mail state:dead args.user=7 "age>1h"; all of them must hold. With terms, no other
    filters can be given.
    """
    if filter:
        if filters != Selector():
            raise click.UsageError("expected terms such as queue:mail, or options such as --queue, got both")
        await _search(store, " ".join(filter), limit)
        return
    await list_jobs(store, filters, limit, empty="no matching jobs")


async def _search(store: Store, filter: str, limit: int) -> None:
    found: list[JobInfo] = []
    after, looked_at = None, 0
    async with store.admin() as admin:
        while len(found) < limit and looked_at < _SEARCHED:
            page = await admin.jobs(filter, after, limit - len(found))
            found += page.jobs
            looked_at += page.looked_at
            if (after := page.after) is None:
                break
    if answered({"jobs": [summary(job) for job in found], "more": after is not None}):
        return
    if found:
        print_jobs(found)
    if after is not None:
        note(f"{looked_at:,} jobs were looked at; for more, raise --limit or narrow the filter")
    elif not found:
        note("no matching jobs")


async def list_jobs(store: Store, filters: Selector, limit: int, *, empty: str) -> None:
    """Print matching jobs."""
    async with store.opened() as client:
        found = await client.list_jobs(filters, limit + 1)
        if not found and filters.reason is not None:
            empty = await _without_reason(client, filters)
    jobs, more = found[:limit], len(found) > limit
    if answered({"jobs": [summary(job) for job in jobs], "more": more}):
        return
    if jobs:
        print_jobs(jobs)
    else:
        note(empty)
    if more:
        note(f"these are the newest {limit}; for more, raise --limit or narrow the filters")


async def _without_reason(client: Client, filters: Selector) -> str:
    """That no job ended for the reason, and which reasons there are."""
    others = await client.list_jobs(replace(filters, reason=None), _LOOKED_AT)
    reasons = sorted({repr(job.reason) for job in others if job.reason})
    more = " …" if len(reasons) > _NAMED else ""
    known = f"{', '.join(reasons[:_NAMED])}{more}" if reasons else "none"
    return f"no job has the reason {filters.reason!r}; reasons of the newest {_LOOKED_AT:,} that match: {known}"


@job_command.command("show")
@click.argument("job_id", metavar="[ID]", type=options.job_id, required=False)
@click.option("--key", help="The job that last took this key, instead of an id; needs --queue.")
@click.option("--queue", type=options.name, help="The queue of the key.")
@answer_options
async def show_command(store: Store, job_id: JobId | None, key: str | None, queue: str | None) -> None:
    """Show everything about a job.

    Also says, in one sentence, why a waiting job is not running.
    """
    if (job_id is None) == (key is None) or (key is None) != (queue is None):
        raise click.UsageError("expected an ID, or --queue and --key")
    which = JobKey(queue, key) if queue is not None and key is not None else job_id
    assert which is not None
    await show_job(store, which)


async def show_job(store: Store, job_id: JobId | JobKey, *, state: JobState | None = None) -> None:
    """Print one job; if ``state`` is given, only a job in that state will do."""
    job, why = await _job_and_why(store, job_id)
    if state not in (None, job.state):
        raise Problem(
            NOT_FOUND,
            f"job {job.id} is not a dead letter: it is {in_words(job.state)}",
            run=f"headrace job show {job.id}",
        )
    if answered(in_full(job, why)):
        return
    print_job(job, why)
    _note_remedy(store, job, why)


async def _job_and_why(store: Store, job_id: JobId | JobKey) -> tuple[JobInfo, Why]:
    async with store.opened() as client:
        return await client.get(job_id), await client.why(job_id)


def _note_remedy(store: Store, job: JobInfo, why: Why) -> None:
    if command := remedy(job, why, store.app, store.queues()):
        note(f"run: {command}")


@job_command.command("why")
@id_argument
@answer_options
async def why_command(store: Store, job_id: JobId) -> None:
    """Say in one sentence why a job is not running.

    Names the first reason that applies: its queue, tenant or task is paused, it is not due yet, another job of its
    group comes first, a limit or rate is reached, no worker listens …
    """
    job, why = await _job_and_why(store, job_id)
    if answered({"id": job.id, "code": why.code, "sentence": why.sentence}):
        return
    print(clean(why.sentence))
    _note_remedy(store, job, why)


@job_command.command("retry")
@ids_argument
@store_options
async def retry_command(store: Store, job_ids: tuple[JobId, ...]) -> None:
    """Run ended jobs again, now.

    They start over as if new, with no attempt counted. If another job holds its key by now, a job stays as it is (exit
    code 4).
    """
    await change_jobs(store, job_ids, Requeue())


@job_command.command("cancel")
@ids_argument
@store_options
async def cancel_command(store: Store, job_ids: tuple[JobId, ...]) -> None:
    """Cancel waiting jobs; ask running ones to stop."""
    await change_jobs(store, job_ids, Cancel("cancelled by an operator"))


@job_command.command("reschedule")
@ids_argument
@click.option("--delay", type=options.duration, help="Make them due this much later, such as 10m.")
@click.option("--at", type=options.instant, metavar="TIME", help="Make them due then, such as 2030-01-01T06:30+01:00.")
@store_options
async def reschedule_command(store: Store, job_ids: tuple[JobId, ...], delay: int | None, at: int | None) -> None:
    """Make waiting jobs due at another time; without an option, now."""
    if delay is not None and at is not None:
        raise click.UsageError("expected --delay or --at, got both")
    await change_jobs(store, job_ids, Reschedule(delay or 0, at))


@job_command.command("pause")
@ids_argument
@store_options
async def pause_command(store: Store, job_ids: tuple[JobId, ...]) -> None:
    """Keep waiting jobs from running until they are resumed."""
    await change_jobs(store, job_ids, Pause())


@job_command.command("resume")
@ids_argument
@store_options
async def resume_command(store: Store, job_ids: tuple[JobId, ...]) -> None:
    """Let paused jobs run again, at their original times."""
    await change_jobs(store, job_ids, Resume())


async def change_jobs(store: Store, job_ids: tuple[JobId, ...], change: Change) -> None:
    """Change the named jobs; report those that could not be changed at the end."""
    async with store.opened() as client:
        await note_jobs(client, type(change).__name__.lower(), job_ids)
        altered = {one.id: one for one in await client.alter(Selector(ids=job_ids), change)}
        problems = [await _outcome(client, change, job_id, altered.get(job_id)) for job_id in dict.fromkeys(job_ids)]
    bad = [problem for problem in problems if problem is not None]
    for problem in bad[:-1]:
        problem.show()
    if bad:
        raise bad[-1]


async def _outcome(client: Client, change: Change, job_id: JobId, altered: Altered | None) -> Problem | None:
    shown = UUID(bytes=job_id)
    if altered is None:
        return not_found(job_id)
    if altered.changed:
        print(f"{shown}  {_done(change, altered)}")
        return None
    return _refused(change, altered, await client.get(job_id))


_DONE: dict[tuple[type[Change], JobState | None], str] = {
    (Requeue, JobState.AVAILABLE): "waits to run again",
    (Cancel, JobState.CANCELLED): "cancelled",
    (Cancel, JobState.RUNNING): "running, and asked to stop",
    (Pause, JobState.PAUSED): "paused",
    (Resume, JobState.AVAILABLE): "resumed",
    (Reschedule, JobState.AVAILABLE): "rescheduled",
    (Reschedule, JobState.PAUSED): "rescheduled, and stays paused",
}


def _done(change: Change, altered: Altered) -> str:
    return _DONE.get((type(change), altered.after), "changed")


def _refused(change: Change, altered: Altered, job: JobInfo) -> Problem:
    if isinstance(change, Requeue) and altered.before.terminal:
        return Problem(
            CONFLICT,
            f"job {job.id} cannot be requeued: another job holds its key {job.key!r} in queue {job.queue!r}",
            cause="the same work was enqueued again, or its result is still kept",
            run=f"headrace job list --queue {job.queue}",
        )
    return Problem(
        CONFLICT, f"job {job.id} is {in_words(altered.before)}: nothing was changed", run=f"headrace job show {job.id}"
    )


def not_found(job_id: JobId) -> Problem:
    """No such job."""
    return Problem(
        NOT_FOUND,
        f"there is no job {UUID(bytes=job_id)}",
        cause="it was never in this store, or retention has removed its record",
        run="headrace job list",
    )
