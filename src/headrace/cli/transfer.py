"""``headrace transfer``: move a store to another one while it is used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import click
import msgspec

from headrace.api.connection import open_backend
from headrace.cli.audited import note_change
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options, store_options, yes_option
from headrace.cli.output import answered, confirm, counted, note, print_fields
from headrace.cli.problems import FAILED, USAGE, Problem
from headrace.cli.times import exact, now
from headrace.errors import ConfigError
from headrace.routing import parity, passage
from headrace.routing.mover import Mover, Progress, Stopped, queues_with_groups
from headrace.routing.moving import Moving
from headrace.routing.passage import MOVING, SHADOWED, Phase, Transfer, Verdict
from headrace.seam.instants import to_datetime

_COUNTED = ("available", "running", "jobs_paused", "completed", "cancelled", "failed")
_NEXT = {
    Phase.SHADOW: "headrace transfer cutover",
    Phase.DUAL: "headrace transfer cutover",
    Phase.READY: "headrace transfer cutover, or headrace transfer rollback",
    Phase.FORWARD: "headrace transfer resume, or headrace transfer rollback",
    Phase.MOVED: "headrace transfer verify, then headrace transfer finish, or headrace transfer rollback",
    Phase.BACK: "headrace transfer resume",
    Phase.DONE: "set the URL to the second store alone",
}
_insist_option = click.option("--insist", is_flag=True, help="End it also if a job is lost or doubled.")


@click.group("transfer", cls=Group)
def transfer_command() -> None:
    """Move a store to another one while producers and workers go on.

    The URL names both, with an arrow between them: "sqlite:///jobs.db -> postgresql://localhost/app". Give it to every
    process before you start, and to these commands.
    """


@asynccontextmanager
async def _opened(store: Store) -> AsyncIterator[Moving]:
    async with store.opened() as client:
        backend = open_backend(client.settings.url)
        if not isinstance(backend, Moving):
            raise Problem(
                USAGE,
                "expected the URLs of two stores with an arrow between them, got one store",
                run='the same command with --url "sqlite:///jobs.db -> postgresql://localhost/app"',
            )
        try:
            await backend.open()
            yield backend
        finally:
            await backend.close()


@asynccontextmanager
async def _changing(store: Store, action: str) -> AsyncIterator[Moving]:
    """The same for a command that changes something: it is noted first."""
    async with store.opened() as client:
        await note_change(client, f"{action} transfer")
    async with _opened(store) as moving:
        yield moving


@transfer_command.command("plan")
@answer_options
async def plan_command(store: Store) -> None:
    """Show what would move, and whether it can. Nothing changes."""
    async with _opened(store) as moving:
        await Mover(moving).check()
        queues = (await moving.old.stats()).queues
        data = {state: sum(getattr(queue, state) for queue in queues) for state in _COUNTED}
        data |= {"queues": len(queues), "queues_that_stand_still": len(await queues_with_groups(moving.old))}
    if answered(data):
        return
    print_fields([(name.replace("_", " "), count) for name, count in data.items()])
    note("both stores can be moved to and from. To begin: headrace transfer start")


@transfer_command.command("start")
@click.option("--dual", is_flag=True, help="Let producers wait for the copies of their jobs.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    metavar="SHARE",
    help="Copy this share of new jobs.",
)
@click.option("--rate", type=click.IntRange(1), metavar="N", help="Move at most N jobs a second.")
@store_options
async def start_command(store: Store, dual: bool, share: float, rate: int | None) -> None:
    """Begin: copies of new jobs go to the second store, to see how it does. Repeat it to change the options."""
    async with _changing(store, "start") as moving:
        transfer = await Mover(moving).start(dual=dual, share=share, rate=rate)
    note(f"transfer {transfer.name} is in the phase {transfer.phase}. Next: {_NEXT[transfer.phase]}")


@transfer_command.command("status")
@answer_options
async def status_command(store: Store) -> None:
    """Show the phase, what is left, and how copies compare with their jobs."""
    async with _opened(store) as moving:
        transfer = await passage.read(moving.old)
        data = await _status(moving, transfer)
    if answered(data):
        return
    if transfer is None:
        note("there is no transfer. To begin: headrace transfer start")
        return
    at = now()
    fields = {**data, "phase_at": _when(transfer.phase_at, at), "began_at": _when(transfer.began_at, at)}
    print_fields([(name.replace("_", " "), value) for name, value in fields.items()])
    note(f"next: {_NEXT[transfer.phase]}")


def _when(instant: int, at: datetime) -> str:
    return exact(to_datetime(instant), at)


async def _status(moving: Moving, transfer: Transfer | None) -> dict[str, Any]:
    if transfer is None:
        return {"phase": None}
    data: dict[str, Any] = msgspec.to_builtins(transfer)
    if transfer.phase in SHADOWED:
        data["parity"] = msgspec.to_builtins(await parity.compare(moving, transfer))
    if transfer.phase in MOVING:
        view = await moving.look()
        left = (await view.stores[0].stats()).queues
        data["left"] = sum(q.available + q.jobs_paused + q.completed + q.cancelled + q.failed for q in left)
        data["running"] = sum(queue.running for queue in left)
    return data


@transfer_command.command("pause")
@store_options
async def pause_command(store: Store) -> None:
    """Let movers wait. Producers and workers go on, with both stores."""
    async with _changing(store, "pause") as moving:
        await _set_paused(moving, True)
    note("movers stop within a second. To go on: headrace transfer resume")


async def _set_paused(moving: Moving, paused: bool, **changes: Any) -> Transfer:
    changes = {**changes, "paused": paused}
    transfer = await passage.write(moving.old, lambda known: known and msgspec.structs.replace(known, **changes))
    if transfer is None:
        raise ConfigError("expected a transfer, got none. To begin one: headrace transfer start")
    return transfer


@transfer_command.command("resume")
@click.option(
    "--rate", type=click.IntRange(0), metavar="N", help="From now on, move at most N jobs a second; 0: no bound."
)
@store_options
async def resume_command(store: Store, rate: int | None) -> None:
    """Go on moving after a pause, or after a mover was killed. Ends when nothing is left to move."""
    async with _changing(store, "resume") as moving:
        transfer = await _set_paused(moving, False, **({} if rate is None else {"rate": rate or None}))
        await _run(moving, back=transfer.phase is Phase.BACK)


@transfer_command.command("cutover")
@yes_option
@store_options
async def cutover_command(store: Store, yes: bool) -> None:
    """Let new jobs go to the second store, and move all there is. Ends when nothing is left to move."""
    confirm("let new jobs go to the second store, and move all there is?", yes=yes)
    async with _changing(store, "cutover") as moving:
        await _run(moving, back=False)


@transfer_command.command("rollback")
@yes_option
@_insist_option
@store_options
async def rollback_command(store: Store, yes: bool, insist: bool) -> None:
    """Take everything back to the first store, from any phase. Then there is no transfer any more."""
    confirm("take everything back to the first store?", yes=yes)
    async with _changing(store, "rollback") as moving:
        await _set_paused(moving, False)
        await _run(moving, back=True, insist=insist)


async def _run(moving: Moving, *, back: bool, insist: bool = False) -> None:
    mover = Mover(moving, tell=_Teller(), insist=insist)
    try:
        if back:
            await mover.rollback()
            note(
                f"{counted(mover.progress.moved, 'job')} moved; all is in the first store, and there is no transfer"
                + _told(mover.verdict)
            )
        else:
            transfer = await mover.cutover()
            note(f"{counted(mover.progress.moved, 'job')} moved; nothing is left. Next: {_NEXT[transfer.phase]}")
    except Stopped as stopped:
        raise Problem(
            FAILED, str(stopped), cause=f"{counted(mover.progress.moved, 'job')} moved until then"
        ) from stopped


def _told(verdict: Verdict | None) -> str:
    """What the ledgers said, before they were dropped."""
    return "" if verdict is None else f". Its ledgers: {verdict.lost:,} lost, {verdict.doubled:,} doubled"


class _Teller:
    """Tells now and then how far it is."""

    def __init__(self) -> None:
        self._told = 0

    def __call__(self, progress: Progress) -> None:
        if progress.moved >= self._told + 10_000:
            self._told = progress.moved
            note(f"{counted(progress.moved, 'job')} moved, {progress.running:,} still running there")


@transfer_command.command("verify")
@answer_options
async def verify_command(store: Store) -> None:
    """Hold the ledgers of both stores against each other. Fails if a job is lost or doubled.

    Once the transfer is finished, it shows what they said at the end.
    """
    async with _opened(store) as moving:
        transfer = await passage.read(moving.old)
        if transfer is None:
            raise ConfigError("expected a transfer, got none")
        await moving.new.open()
        verdict = await parity.verify(moving, transfer)
    if not answered(msgspec.to_builtins(verdict)):
        print_fields(list(msgspec.to_builtins(verdict).items()))
    if verdict.lost or verdict.doubled:
        raise Problem(FAILED, f"{counted(verdict.lost, 'job')} lost, {verdict.doubled:,} doubled")


@transfer_command.command("finish")
@yes_option
@_insist_option
@store_options
async def finish_command(store: Store, yes: bool, insist: bool) -> None:
    """End the transfer for good, once nothing is left to move. There is no way back after this."""
    confirm("end the transfer for good?", yes=yes)
    async with _changing(store, "finish") as moving:
        mover = Mover(moving, insist=insist)
        await mover.finish()
    note(f"all is in the second store{_told(mover.verdict)}. Next: {_NEXT[Phase.DONE]}")
