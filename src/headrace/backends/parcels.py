"""Parcels as bytes, as stores keep them until they are confirmed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.errors import Rejected
from headrace.seam.records import Record, Row, carried, carried_by_name
from headrace.seam.transfers import Parcel
from headrace.types import SECTIONS

WHOLE = frozenset((*SECTIONS, "error", "result"))
"""What a parcel has of a job."""

encode: Callable[[Parcel], bytes] = msgspec.msgpack.Encoder().encode
decode: Callable[[bytes], Parcel] = msgspec.msgpack.Decoder(Parcel).decode


def row_of(job: Record) -> Row:
    """What of a job has been there since it was enqueued."""
    return Row(
        id=job.id, queue=job.queue, task=job.task, cells=job.cells, tenant=job.tenant, key=job.key,
        priority=job.priority, run_at=job.run_at, headers=job.headers, group=job.group,
        **carried_by_name(carried(job)),
    )  # fmt: skip


def not_open(leg: str) -> Rejected:
    """The leg is unknown here, or closed."""
    return Rejected(f"expected a leg that is open here, got {leg!r}; nothing was moved")


def not_confirmed(leg: str) -> Rejected:
    """The leg cannot be closed."""
    return Rejected(f"leg {leg!r} has parcels that were not confirmed; let them arrive and confirm them first")
