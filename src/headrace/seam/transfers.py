"""Transfers: jobs on their way from one store to another, and a ledger that proves that each arrived once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from headrace.seam.records import JobId, JobKey, Record, Stamp
from headrace.seam.ticks import Tick


class Parcel(Struct, frozen=True):
    """A whole job, as one store gives it away and another takes it in."""

    job: Record
    """With all its sections, its error, and its result if that is still held."""
    keyed: bool = False
    """Whether it is the job that last took its key."""
    held_until: int = 0
    """COMPLETED: until when result and key are held."""
    begun: bool = False
    """Whether a handler may have been called for it; see ``Backend.claim``."""
    inboxes: tuple[str, ...] = ()
    """Those that wait for its end, the latest last."""


class HeldKey(Struct, frozen=True):
    """A key that outlives the record of its job."""

    queue: str
    key: str
    id: JobId
    held_until: int


class Side(StrEnum):
    """One of the two lists of a ledger."""

    DEPARTED = "departed"
    ARRIVED = "arrived"


class TransferStore(Protocol):
    """Gives whole jobs away and takes them in. What holds for the ten operations holds here too.

    A *leg* is one journey of jobs from one store to another; its name is chosen by the caller and used once. A job on a
    leg is in exactly one place: in the store that it leaves, then in a *parcel* there, then in the store that it goes
    to. It is never in both, so no two workers can have it. Every step can be repeated, by anybody: a parcel that
    arrives twice is stored once, even if the job has ended and left no record in between.
    """

    async def open_leg(self, leg: str, at: Stamp = None) -> None:
        """Let jobs depart and arrive on this leg. Opening twice is harmless."""

    async def close_leg(self, leg: str, at: Stamp = None) -> None:
        """Forget the leg and its ledger. From now on nothing departs or arrives on it, however late the call: a parcel
        that somebody still holds in hand is refused. Closing twice is harmless. Raises ``Rejected`` while parcels of
        the leg are here that were not confirmed."""

    async def depart(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> list[Parcel]:
        """Turn jobs into parcels, each in one atomic step. Raises ``Rejected`` if the leg is not open here.

        The job and all that belongs to it leave the store: its key is free, its place in its group too, and no
        operation of ``Backend`` knows it any more. Nobody that waits for it is told, as it has not ended. The parcel
        stays until it is confirmed. The ledger says that the job has departed.

        RUNNING jobs, unknown ones and those that cannot be read are passed over. A store may also pass over a job that
        somebody changes at this moment.
        """

    async def parcels(
        self, leg: str, names: Sequence[JobId | JobKey] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Parcel]:
        """Parcels of the leg that were not confirmed, in the order of their ids: of these jobs, or of all. A name by
        key means the job that had the key when it departed."""

    async def arrive(self, leg: str, parcels: Sequence[Parcel], at: Stamp = None) -> list[bool]:
        """Store the jobs of parcels, each in one atomic step; answer for each, in order, whether it was stored now.
        Raises ``Rejected`` if the leg is not open here.

        The job is as it was: state, epoch, attempt, lost, begun, error, cells, result, times and waiters. It takes its
        key along if it had it, unless a job here keeps the key; then it goes without. No depth refuses it. If it is
        AVAILABLE, listeners to ``queue:NAME`` get a hint. The ledger says that the job has arrived.

        A job that the ledger lists already is not stored again. Nor is one whose id is stored here: an id names one
        job. The ledger then lists it.
        """

    async def confirm(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> None:
        """Drop the parcels of jobs that have arrived. The ledger keeps their ids."""

    async def ledger(self, leg: str, side: Side, after: JobId | None = None, limit: int = 1_000) -> list[JobId]:
        """The ids above ``after`` that departed, or arrived, in order. Fewer than ``limit`` mean that these were the
        last."""

    async def held_keys(self, after: JobKey | None = None, limit: int = 100, at: Stamp = None) -> list[HeldKey]:
        """Keys that outlive their jobs and are still held, above ``after``, in an order of the store's own. Fewer than
        ``limit`` mean that these were the last."""

    async def hold_keys(self, keys: Sequence[HeldKey], at: Stamp = None) -> None:
        """Hold keys that outlive their jobs, each unless it is held, or a job has it."""

    async def add_ticks(self, uid: bytes, ticks: Sequence[Tick], at: Stamp = None) -> None:
        """Enter ticks into the history of a schedule, as they are. A slot that is in the history stays as it is."""

    async def settle(self, at: Stamp = None) -> bool:
        """Whether every call that began before this one, or before the first one that answered False since, has taken
        effect by now, or never will. Used after a depth was set to 0: once it is True, no insert can slip through."""
