"""Jobs that are in a parcel: whoever meets one takes it to where it goes."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import Rejected
from headrace.routing.view import View, present
from headrace.seam.records import JobId, JobKey
from headrace.seam.transfers import Parcel


async def deliver(view: View, parcels: Sequence[Parcel]) -> int:
    """Let parcels arrive, and confirm them: how many were stored now. If the leg was closed meanwhile, others have
    done it long ago."""
    if not parcels:
        return 0
    old, new = (present(store.transfers) for store in view.stores)
    try:
        stored = await new.arrive(view.leg, parcels)
    except Rejected:
        if await old.parcels(view.leg, [parcel.job.id for parcel in parcels], 1):
            raise
        return 0
    await old.confirm(view.leg, [parcel.job.id for parcel in parcels])
    return sum(stored)


async def deliver_named(view: View, names: Sequence[JobId | JobKey]) -> None:
    """Take these jobs along that are in parcels. Afterwards they are in one of the stores, if they exist."""
    if view.leg and names:
        await deliver(view, await present(view.stores[0].transfers).parcels(view.leg, names, len(names)))


async def in_transit(view: View) -> bool:
    """Whether any job is in a parcel."""
    return bool(view.leg and await present(view.stores[0].transfers).parcels(view.leg, limit=1))
