"""All dead letters, oldest first: as lines of JSON, or counted by what went wrong."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from headrace import Client
from headrace.api.info import job_info
from headrace.cli.job_output import summary
from headrace.cli.problems import UNAVAILABLE, Problem
from headrace.errors import ObjectsUnavailable
from headrace.payloads.codec import Unloaded
from headrace.seam.archive import Mark
from headrace.seam.instants import to_datetime
from headrace.seam.records import Record, Selector
from headrace.types import SECTIONS, JobState
from headrace.worker.failures import failures

_PAGE = 500
_ALL = frozenset((*SECTIONS, "error"))


async def dead_letters(
    client: Client, filters: Selector, want: frozenset[str] = _ALL
) -> AsyncIterator[Record]:  # fmt: skip
    """The dead letters that match, in the order in which they failed. Sections come from the object store, if they are
    there."""
    backend = await client.backend()
    if backend.archive is None:
        raise Problem(UNAVAILABLE, "this store does not list its dead letters in order")
    after: Mark | None = None
    while True:
        page = await backend.archive.ended(JobState.FAILED, after, _PAGE, want, at=client.clock.stamp())
        found = [one for one in page.records if _matches(one, filters)]
        for record in await _loaded(client, found) if want & {*SECTIONS} else found:
            yield record
        if page.last is None:
            return
        after = page.last


def _matches(record: Record, filters: Selector) -> bool:
    return all(
        getattr(filters, name) in (None, getattr(record, name)) for name in ("queue", "tenant", "task", "reason")
    )


async def _loaded(client: Client, records: list[Record]) -> list[Record]:
    if client.stowage is None:
        return records
    found = await client.stowage.load_records(records)
    for cell in (cell for record in found for cell in record.cells.values()):
        if isinstance(cell, Unloaded) and isinstance(cell.error, ObjectsUnavailable):
            raise cell.error
    return found


def line(client: Client, record: Record) -> dict[str, Any]:
    """A dead letter as an object of JSON: all that is known, its arguments, its failures, its sections as they are
    stored, in base64, and why others cannot be had."""
    info = job_info(record, client.packer.envelope)
    told = [
        {
            "type": one.type,
            "message": one.message,
            "attempt": one.attempt,
            "at": to_datetime(one.at),
            "times": one.times,
        }
        for one in info.failures
    ]
    gone = {name: cell.error for name, cell in record.cells.items() if isinstance(cell, Unloaded)}
    sections = {name: b64encode(cell).decode() for name, cell in record.cells.items() if name not in gone}
    lost = {name: f"{type(error).__name__}: {error}" for name, error in gone.items()}
    return summary(info) | {"args": info.to_dict()["args"], "failures": told, "sections": sections, "lost": lost}


async def classes(client: Client, filters: Selector) -> list[dict[str, Any]]:
    """What went wrong, most frequent first: by queue, task, reason and the type of the last failure."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    async for record in dead_letters(client, filters, frozenset(("error",))):
        known = failures(record.error)
        found[record.queue, record.task, record.reason, known[-1].type if known else ""] += 1
    names = ("queue", "task", "reason", "error")
    return [dict(zip(names, key, strict=True)) | {"jobs": count} for key, count in found.most_common()]
