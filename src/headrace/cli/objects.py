"""``headrace objects``: the object store that sections lie in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import click
from msgspec.structs import replace

from headrace.api.client import Client
from headrace.api.connection import open_backend
from headrace.api.signals import Stopper
from headrace.cli import options
from headrace.cli.audited import note_change
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, store_options, yes_option
from headrace.cli.output import answered, confirm, counted, note, print_json
from headrace.cli.problems import FAILED, USAGE, Problem
from headrace.core.config import ObjectSettings
from headrace.keeping.delayed_loader import DelayedLoader
from headrace.keeping.object_keeper import ObjectKeeper
from headrace.keeping.share import Share
from headrace.payloads import lifecycle
from headrace.payloads.object_owner import ObjectOwner
from headrace.payloads.object_url import Location, parse
from headrace.payloads.objects import Objects

_DAYS = 400
"""For jobs that are due within a year, and what is kept of them."""
days_option = click.option(
    "--days",
    type=click.IntRange(1, 3_650),
    metavar="N",
    default=_DAYS,
    help="Objects end N days after they were written. Longer than jobs are ever delayed and kept.",
)
cooler_option = click.option(
    "--cooler-after",
    type=click.IntRange(1, 3_650),
    metavar="N",
    help="After N days, objects lie where storing costs less and reading more; on S3 before 30 days in GLACIER_IR.",
)


@click.group("objects", cls=Group)
def objects_command() -> None:
    """Look after the object store that sections lie in.

    Workers delete old objects themselves. A lifecycle rule of the bucket is a second net, and must be longer.
    """


@objects_command.command("plan")
@days_option
@cooler_option
@store_options
async def plan_command(store: Store, days: int, cooler_after: int | None) -> None:
    """Print the lifecycle rule for the bucket, in the form that its own tools take."""
    print_json(lifecycle.plan(_location_for(store, days), days, cooler_after))


@objects_command.command("apply")
@days_option
@cooler_option
@store_options
async def apply_command(store: Store, days: int, cooler_after: int | None) -> None:
    """Set the lifecycle rule on an S3 bucket; its other rules stay."""
    location = _location_for(store, days)
    async with store.opened(create=True) as client:
        await note_change(client, "apply lifecycle", bucket=location.where, days=days, cooler_after=cooler_after)
    await lifecycle.apply(location, days, cooler_after)
    note(f"{location.where}: objects end {counted(days, 'day')} after they were written, if no worker has deleted them")


@objects_command.command("check")
@days_option
@answer_options
async def check_command(store: Store, days: int) -> None:
    """Check the lifecycle rules of an S3 bucket; fails if objects might end too early, or never."""
    location = _location_for(store, days)
    problems = await lifecycle.check(location, days)
    if not answered({"ok": not problems, "problems": problems}) and not problems:
        note(f"{location.where}: its lifecycle rules are fine")
    if problems:
        raise Problem(FAILED, "; ".join(problems), run="headrace objects plan, and headrace objects apply")


@objects_command.command("sweep")
@click.option("--dry-run", is_flag=True, help="Delete nothing, and print what would go.")
@answer_options
async def sweep_command(store: Store, dry_run: bool) -> None:
    """Delete objects that no job refers to.

    There are some where a process died while it enqueued. They would go with their hour. Objects that were written
    within objects.grace stay.
    """
    _location(store)
    async with store.opened() as client:
        backend = await client.backend()
        assert client.stowage is not None
        keeper = ObjectKeeper(
            backend, client.stowage, client.clock, Random(), client.observers, client.settings.objects
        )
        if not dry_run:
            await note_change(client, "sweep objects")
        gone = await keeper.sweep(dry_run=dry_run)
    if answered({"dry_run": dry_run, "objects": gone}):
        return
    if dry_run:
        for key in gone:
            print(key)
    note(f"{counted(len(gone), 'object')} {'would go' if dry_run else 'deleted'}")


@objects_command.command("adopt")
@yes_option
@store_options
async def adopt_command(store: Store, yes: bool) -> None:
    """Make the objects those of this store, if another one has used them before.

    The other one's processes delete nothing there any more, and do not start again. Sections that only its jobs refer
    to go: it must be gone for good.
    """
    location = _location(store)
    settings = store.client().settings
    confirm(f"delete, in time, all in {location.where} that no job of this store refers to?", yes=yes)
    async with Client(open_backend(settings.url), replace(settings, objects=ObjectSettings())) as client:
        documents = (await client.backend()).documents
        if documents is None:
            raise Problem(USAGE, "this store keeps no documents, so it can have no objects")
        await note_change(client, "adopt objects", bucket=location.where)
        await ObjectOwner(Objects(location), documents).adopt()
    note(f"{location.where}: its objects are this store's")


@objects_command.command("load")
@click.option("--ahead", type=options.duration, default="1m", help="How long before jobs are due.")
@click.option("--every", type=options.duration, default="5s", help="How often it looks.")
@click.option("--share", type=click.IntRange(0), default=0, help="Load only share number N of --shares; from 0.")
@click.option("--shares", type=click.IntRange(1), default=1, help="How many processes share the jobs out.")
@click.option("--once", is_flag=True, help="Look once, and end.")
@store_options
async def load_command(store: Store, ahead: int, every: int, share: int, shares: int, once: bool) -> None:
    """Bring sections of delayed jobs back into the store, a little before they are due.

    Runs until it is stopped. Jobs do not need it: workers load what is not there. It keeps the object store out of the
    time between a job's due time and its start.
    """
    if share >= shares:
        raise Problem(USAGE, f"--share: expected less than --shares, got {share} of {shares}")
    _location(store)
    async with store.opened() as client:
        backend = await client.backend()
        assert client.stowage is not None
        assert backend.references is not None
        loader = DelayedLoader(
            backend, backend.references, client.stowage, client.clock, ahead=ahead, share=Share(share, shares)
        )
        if once:
            await loader.look()
        else:
            loading = asyncio.ensure_future(loader.run(every / 1e6, Random()))

            def stop() -> None:
                loading.cancel()

            with Stopper(stop), suppress(asyncio.CancelledError):
                await loading
    note(f"sections of {counted(loader.loaded, 'job')} loaded")


def _location_for(store: Store, days: int) -> Location:
    """The location, for a rule of so many days."""
    location, least = _location(store), lifecycle.least_days(store.client().settings.objects)
    if days < least:
        raise Problem(
            USAGE,
            f"--days: expected {least} or more, got {days}. Objects are needed for a day, objects.keep and "
            "objects.grace after their jobs are due, and as many days more as jobs are ever delayed",
        )
    return location


def _location(store: Store) -> Location:
    url = store.client().settings.objects.url
    if url is None:
        raise Problem(
            USAGE,
            "there is no object store: objects.url is not set",
            run="the same command with HEADRACE_OBJECTS__URL=s3://bucket/prefix in the environment",
        )
    return parse(url)
