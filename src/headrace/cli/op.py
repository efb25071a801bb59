"""``headrace op``: bulk operations on all jobs that a filter finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from headrace import Action, Admin, Operation
from headrace.admin.audit import AuditEntry
from headrace.admin.operations import PACE, QUEUE, Operator, operator_client
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, store_options, yes_option
from headrace.cli.output import answered, confirm, counted, note, print_answer, print_fields, print_list, progress
from headrace.cli.problems import FAILED, Problem
from headrace.cli.times import exact, now
from headrace.core.durations import relative
from headrace.types import JobState

_LOOK = 0.3


@click.group("op", cls=Group)
def op_command() -> None:
    """Change all jobs that a filter finds, in the background."""


@op_command.command("submit")
@click.argument("filter")
@click.argument("action", type=click.Choice([action.value for action in Action]))
@click.argument("argument", required=False)
@click.option("--pace", type=click.IntRange(1), default=PACE, metavar="N", help="Change at most N jobs per second.")
@click.option("--detach", is_flag=True, help="Leave it to a server with http.writes, or to 'headrace op run'.")
@yes_option
@answer_options
async def submit_command(
    store: Store, filter: str, action: str, argument: str | None, pace: int, detach: bool, yes: bool
) -> None:
    """Do ACTION to all jobs that FILTER finds, such as: queue:mail state:dead age>1h.

    Counts them and asks first. Goes on here until it is done; if it is interrupted, 'headrace op run' continues it.
    """
    async with store.admin() as admin:
        found = await admin.primary.count(filter)
        jobs = counted(found.number, "job") if found.exact else f"more than {counted(found.number, 'job')}"
        if not found.number:
            print_answer({"number": 0}, "no job matches")
            return
        note(f"{jobs} match")
        confirm(f"{action} {jobs}?", yes=yes)
        operation = await admin.submit(filter, action, argument, expected=found.number, pace=pace)
        if not detach:
            operation = await _follow(admin, operation)
    _print(operation)
    if not detach and operation.state is not JobState.COMPLETED:
        raise Problem(FAILED, f"the operation is {operation.state.value}: {operation.error or 'see its job'}")


async def _follow(admin: Admin, operation: Operation) -> Operation:
    """Carry operations out here, until this one has ended."""
    app = Operator(operator_client(admin.client)).app()
    async with app, asyncio.TaskGroup() as group:
        working = group.create_task(app.work([QUEUE]))
        with progress(operation.action, operation.expected) as advance:
            met = 0
            while not operation.state.terminal and not working.done():
                await asyncio.sleep(_LOOK)
                operation = await admin.operation(operation.id)
                advance(operation.met - met)
                met = operation.met
        app.stop()
    return operation


@op_command.command("list")
@answer_options
async def list_command(store: Store) -> None:
    """List bulk operations, newest first."""
    async with store.admin() as admin:
        found = await admin.operations()
    at, columns = now(), ("id", "state", "action", "filter", "met", "changed", "by", "submitted")

    def row(one: Operation) -> Sequence[object]:
        told = one.state.value, one.action, one.filter, one.met, one.changed, one.actor
        return one.id, *told, relative(one.submitted_at, at)

    print_list("operations", found, columns, row, empty="no operations yet")


@op_command.command("show")
@click.argument("op_id", metavar="ID")
@answer_options
async def show_command(store: Store, op_id: str) -> None:
    """Show a bulk operation."""
    async with store.admin() as admin:
        _print(await admin.operation(op_id))


@op_command.command("cancel")
@click.argument("op_id", metavar="ID")
@answer_options
async def cancel_command(store: Store, op_id: str) -> None:
    """Stop a bulk operation. What it has changed stays changed."""
    async with store.admin() as admin:
        _print(await admin.cancel_operation(op_id))


@op_command.command("run")
@store_options
async def run_command(store: Store) -> None:
    """Carry out bulk operations that wait, then end."""
    async with store.opened() as client:
        app = Operator(operator_client(client)).app()
        async with app:
            await app.drain([QUEUE])


@op_command.command("log")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, metavar="N", help="At most N, newest first.")
@answer_options
async def log_command(store: Store, limit: int) -> None:
    """Show who did what: the audit log."""
    async with store.admin() as admin:
        found = await admin.audit.entries(limit=limit)
    at, columns = now(), ("number", "when", "who", "what", "details")

    def row(one: AuditEntry) -> Sequence[object]:
        return one.number, exact(one.at, at), one.actor, one.action, _details(one.details)

    print_list("entries", found, columns, row, empty="nobody has done anything yet")


def _details(details: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in details.items())[:200]


def _print(operation: Operation) -> None:
    if answered(operation):
        return
    at = now()
    print_fields(
        [
            ("id", operation.id),
            ("action", f"{operation.action} {operation.argument or ''}".strip()),
            ("filter", operation.filter),
            ("by", operation.actor),
            ("state", operation.state.value),
            ("expected", operation.expected),
            ("met", operation.met),
            ("changed", operation.changed),
            ("submitted", exact(operation.submitted_at, at)),
            ("ended", exact(operation.ended_at, at)),
            ("error", operation.error),
        ]
    )
