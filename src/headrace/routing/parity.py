"""What proves a transfer: copies that are like their jobs, and ledgers that agree."""

from __future__ import annotations

from msgspec import Struct

from headrace.core.walks import walk
from headrace.routing.moving import Moving
from headrace.routing.passage import MOVING, Phase, Transfer, Verdict
from headrace.routing.shadow import KEPT, sampled, twin
from headrace.routing.view import present
from headrace.seam.protocol import Backend
from headrace.seam.records import JobId, Record, Selector
from headrace.seam.transfers import Side
from headrace.types import SECTIONS

_PAGE = 250
_SETTLES = 5_000_000
"""Copies of jobs that are younger than this may still be on their way."""
_LISTED = 10


class Parity(Struct, frozen=True, kw_only=True):
    """Jobs whose copies were looked for."""

    checked: int = 0
    alike: int = 0
    missing: int = 0
    different: int = 0
    examples: tuple[str, ...] = ()
    """Ids of some that are missing or different."""


async def compare(store: Moving, transfer: Transfer, most: int = 2_000) -> Parity:
    """Look for the copies of the newest jobs that were enqueued since copies are made."""
    await store.new.open()
    now = await store.old.now()
    since, upto = max(transfer.phase_at, now - KEPT + _SETTLES), now - _SETTLES
    checked = alike = missing = 0
    examples: list[str] = []
    async for records in walk(store.old, Selector(), page=_PAGE):
        chosen = [one for one in records if since <= one.enqueued_at <= upto]
        chosen = [one for one in chosen if sampled(one.id, transfer.share) and not one.epoch]
        jobs = await store.old.fetch([one.id for one in chosen], frozenset(SECTIONS))
        copies = await store.new.fetch([twin(one.id) for one in chosen], frozenset(SECTIONS))
        for job, copy in zip(jobs, copies, strict=True):
            if job is not None and not job.epoch:
                checked += 1
                alike += copy is not None and _alike(job, copy)
                missing += copy is None
                if copy is None or not _alike(job, copy):
                    examples.append(job.id.hex())
        if checked >= most or (records and records[-1].enqueued_at < since):
            break
    return Parity(
        checked=checked,
        alike=alike,
        missing=missing,
        different=checked - alike - missing,
        examples=tuple(examples[:_LISTED]),
    )


def _alike(job: Record, copy: Record) -> bool:
    told = (job.task, job.tenant, job.priority, job.headers, job.cells)
    return told == (copy.task, copy.tenant, copy.priority, copy.headers, copy.cells)


async def verify(store: Moving, transfer: Transfer) -> Verdict:
    """Hold the ledgers of all legs against each other, id by id. Of a transfer that has ended, what they said then."""
    if transfer.verdict is not None:
        return transfer.verdict
    sides = (store.old, store.new)
    departed = arrived = in_transit = 0
    lost: list[JobId] = []
    moved: set[JobId] = set()
    for number in range(1, transfer.legs + 1):
        leg = transfer.leg(number)
        left, goal = sides if number % 2 else sides[::-1]
        gone, here = await _ids(left, leg, Side.DEPARTED), await _ids(goal, leg, Side.ARRIVED)
        parcels = {parcel.job.id for parcel in await present(left.transfers).parcels(leg, limit=100_000)}
        departed, arrived, in_transit = departed + len(gone), arrived + len(here), in_transit + len(parcels - here)
        lost += sorted(gone - here - parcels)
        moved |= gone
    doubled = await _in_both(store, sorted(moved)) if transfer.phase in (*MOVING, Phase.DONE) else []
    return Verdict(
        legs=transfer.legs,
        departed=departed,
        arrived=arrived,
        in_transit=in_transit,
        lost=len(lost),
        doubled=len(doubled),
        examples=tuple(job_id.hex() for job_id in [*lost, *doubled][:_LISTED]),
    )


async def _ids(store: Backend, leg: str, side: Side) -> set[JobId]:
    found: set[JobId] = set()
    after: JobId | None = None
    while some := await present(store.transfers).ledger(leg, side, after):
        found |= {*some}
        after = some[-1]
    return found


async def _in_both(store: Moving, ids: list[JobId]) -> list[JobId]:
    found: list[JobId] = []
    for first in range(0, len(ids), _PAGE):
        some = ids[first : first + _PAGE]
        old, new = await store.old.fetch(some), await store.new.fetch(some)
        found += [job_id for job_id, a, b in zip(some, old, new, strict=True) if a is not None and b is not None]
    return found
