"""``headrace seal``: the keys that payloads and results are sealed with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.audited import note_change
from headrace.cli.commands import Group
from headrace.cli.loading import Store
from headrace.cli.options import answer_options
from headrace.cli.output import answered, counted, note, print_table
from headrace.cli.problems import FAILED, USAGE, Problem

if TYPE_CHECKING:
    from headrace import Client
    from headrace.keeping.resealer import Resealer
    from headrace.schedules.template_seals import TemplateSeals


@click.group("seal", cls=Group)
def seal_command() -> None:
    """Look after the keys that payloads and results are sealed with.

    Workers seal what an old key has sealed again by themselves, as long as they have both keys.
    """


@seal_command.command("status")
@answer_options
async def status_command(store: Store) -> None:
    """Count sections, results and arguments of schedules by the key that they are sealed with.

    An old key can be removed when its count is 0. Reads the whole store.
    """
    async with store.opened() as client:
        resealer, templates, keys = await _sealing(client)
        found = await resealer.survey()
        if templates is not None:
            found += await templates.survey()
    seals, opens = keys[0], keys
    if answered({"seals_with": seals, "opens": opens, "sealed": dict(found)}):
        return
    rows = [[key, found.pop(key, 0), "seals" if key == seals else "opens"] for key in opens]
    print_table(["key", "sealed with it", "here"], [*rows, *([key, n, _trouble(key)] for key, n in found.items())])


@seal_command.command("rotate")
@answer_options
async def rotate_command(store: Store) -> None:
    """Seal everything again that was sealed with an old key; fails if something is left.

    Safe to repeat, and while workers run. With payloads.sealing.read_unsealed, what is not sealed is sealed too.
    """
    from headrace.keeping.resealer import Resealed

    async with store.opened() as client:
        resealer, templates, keys = await _sealing(client)
        await note_change(client, "rotate seals", seals_with=keys[0])
        done = await resealer.reseal()
        if templates is not None:
            done = done.plus(Resealed(*await templates.reseal()))
    if not answered({"seals_with": keys[0], "looked": done.looked, "resealed": done.resealed, "refused": done.refused}):
        note(f"{counted(done.resealed, 'cell')} of {done.looked:,} sealed again, with {keys[0]}")
    if done.refused:
        raise Problem(
            FAILED, f"{counted(done.refused, 'cell')} could not be opened, and stayed", run="headrace seal status"
        )


async def _sealing(client: Client) -> tuple[Resealer, TemplateSeals | None, list[str]]:
    packer = client.packer
    if not packer.seals:
        raise Problem(
            USAGE,
            "nothing is sealed: payloads.sealing.keys is not set",
            run="the same command with HEADRACE_PAYLOADS__SEALING__KEYS=file:/path/to/keys in the environment",
        )
    from headrace.keeping.resealer import Resealer
    from headrace.payloads.sealing import SealingPacker
    from headrace.schedules.template_seals import TemplateSeals

    assert isinstance(packer, SealingPacker)
    backend, keyring = await client.backend(), packer.keyring
    unsealed = client.settings.payloads.sealing.read_unsealed
    resealer = Resealer(backend, keyring, client.stowage, client.clock, unsealed=unsealed)
    if backend.ticks is None:
        return resealer, None, keyring.opens
    return resealer, TemplateSeals(backend.ticks, keyring, client.clock, unsealed=unsealed), keyring.opens


def _trouble(key: str) -> str:
    from headrace.payloads.sealing import UNREADABLE, UNSEALED

    return "" if key in (UNREADABLE, UNSEALED) else "unknown here"
