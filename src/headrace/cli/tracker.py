"""``headrace tracker``: the trackers of an app and their subjects."""

from __future__ import annotations

import click

from headrace import App, Tracker
from headrace.cli.audited import changing
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, store_options
from headrace.cli.output import answered, counted, note, print_fields, print_table
from headrace.cli.problems import NOT_FOUND, Problem

subjects_argument = click.argument("subjects", nargs=-1, required=True)
tier_option = click.option("--tier", metavar="NAME", help="The tier to put them in; the first one by default.")


@click.group("tracker", cls=Group)
def tracker_command() -> None:
    """Look at the trackers of an app, and at what they track."""


@tracker_command.command("list")
@answer_options
async def list_command(store: Store) -> None:
    """List trackers and their tiers: subjects, sheets, bytes."""
    async with store.opened():
        found = {name: await tracker.counts() for name, tracker in store.loaded().trackers.items()}
    if answered({"trackers": found}):
        return
    rows = [
        (name, tier, one["subjects"], one["sheets"], one["bytes"])
        for name, tiers in found.items()
        for tier, one in tiers.items()
    ]
    print_table(("tracker", "tier", "subjects", "sheets", "bytes"), rows)


@tracker_command.command("show")
@click.argument("name")
@click.argument("subject")
@answer_options
async def show_command(store: Store, name: str, subject: str) -> None:
    """Show a subject: its tier, when it was last visited, and when it is next."""
    async with store.opened():
        found = await _tracker(store.loaded(), name).get(subject)
    if found is None:
        raise Problem(NOT_FOUND, f"{subject} is not tracked by {name}")
    last = None if found.last_at is None else found.last_at.isoformat()
    fields = {
        "id": found.id, "tier": found.tier, "added": found.added_at.isoformat(), "last": last,
        "next": found.next_at.isoformat(),
    }  # fmt: skip
    if not answered(fields):
        print_fields([(key, "never" if value is None else value) for key, value in fields.items()])


@tracker_command.command("add")
@click.argument("name")
@subjects_argument
@tier_option
@store_options
async def add_command(store: Store, name: str, subjects: tuple[str, ...], tier: str | None) -> None:
    """Track subjects from now on. Those that are tracked already stay as they are."""
    tracker = _tracker(store.loaded(), name)
    async with changing(store, "add subjects", tracker=name, subjects=len(subjects), tier=tier):
        added = await tracker.add_many(subjects, tier)
    note(f"{counted(added, 'new subject')}")


@tracker_command.command("move")
@click.argument("name")
@click.argument("tier")
@subjects_argument
@store_options
async def move_command(store: Store, name: str, tier: str, subjects: tuple[str, ...]) -> None:
    """Take subjects to another tier."""
    tracker = _tracker(store.loaded(), name)
    async with changing(store, "move subjects", tracker=name, subjects=len(subjects), tier=tier):
        moved = await tracker.move(subjects, tier)
    note(f"{counted(moved, 'subject')} moved")


@tracker_command.command("remove")
@click.argument("name")
@subjects_argument
@store_options
async def remove_command(store: Store, name: str, subjects: tuple[str, ...]) -> None:
    """Track subjects no more."""
    tracker = _tracker(store.loaded(), name)
    async with changing(store, "remove subjects", tracker=name, subjects=len(subjects)):
        removed = await tracker.remove(subjects)
    note(f"{counted(removed, 'subject')} removed")


def _tracker(app: App, name: str) -> Tracker:
    if name not in app.trackers:
        known = ", ".join(app.trackers) or "none"
        raise Problem(NOT_FOUND, f"the app has no tracker {name!r}", cause=f"it has: {known}")
    return app.trackers[name]
