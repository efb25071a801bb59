"""One leg of a transfer, as a memory store knows it."""

from __future__ import annotations

from msgspec import Struct

from headrace.seam.records import JobId
from headrace.seam.transfers import Parcel


class Leg(Struct):
    """Which jobs departed and arrived on it, and the parcels that were not confirmed."""

    departed: set[JobId]
    arrived: set[JobId]
    parcels: dict[JobId, Parcel]
