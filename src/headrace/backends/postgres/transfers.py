"""Whole jobs given away and taken in, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from headrace.backends.parcels import not_confirmed, not_open
from headrace.backends.postgres import rows as shapes
from headrace.backends.postgres.arrays import bigints, integers, texts, uuids
from headrace.backends.postgres.capability import Call, Capability, Send
from headrace.backends.postgres.composites import rows_of
from headrace.seam.records import JobId, JobKey, Stamp
from headrace.seam.ticks import Tick
from headrace.seam.transfers import HeldKey, Parcel, Side

_MOVED = 100
"""Jobs that one transaction moves."""
_FORGOTTEN = 5_000
"""Entries of each list of a ledger that one transaction removes."""


class PostgresTransfers(Capability):
    """The operations of a :class:`~headrace.seam.transfers.TransferStore`."""

    def __init__(self, call: Call, send: Send) -> None:
        super().__init__(call, send)
        self._unsettled: frozenset[str] | None = None
        """Transactions that were seen when the caller began to wait."""

    async def open_leg(self, leg: str, at: Stamp = None) -> None:
        await self._call("open_leg", leg)

    async def close_leg(self, leg: str, at: Stamp = None) -> None:
        more: bool | None = True
        while more:
            [[more]] = await self._call("close_leg", leg, _FORGOTTEN)
            if more is None:
                raise not_confirmed(leg)

    async def depart(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> list[Parcel]:
        parcels: list[Parcel] = []
        unique = list(dict.fromkeys(ids))
        for first in range(0, max(len(unique), 1), _MOVED):
            [[is_open, *_], *rows] = await self._call("depart", at, leg, uuids(unique[first : first + _MOVED]))
            if not is_open:
                raise not_open(leg)
            self._tell(rows)
            departed = [job_id for _, job_id, _ in rows if job_id is not None]
            found = {one.job.id: one for one in await self.parcels(leg, departed, len(departed))} if departed else {}
            parcels += [found[job_id] for job_id in departed if job_id in found]
        return parcels

    def _tell(self, rows: Sequence[Any]) -> None:
        queues = dict.fromkeys(queue for _, _, queue in rows if queue is not None)
        self._send([(f"queue:{queue}", None) for queue in queues])

    async def parcels(
        self, leg: str, names: Sequence[JobId | JobKey] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Parcel]:
        keys = [name for name in names or () if isinstance(name, JobKey)]
        ids = None if names is None else uuids([name for name in names if not isinstance(name, JobKey)])
        queues, named = texts([one.queue for one in keys]), texts([one.key for one in keys])
        return [_parcel(row) for row in await self._call("parcels", leg, ids, queues, named, limit)]

    async def arrive(self, leg: str, parcels: Sequence[Parcel], at: Stamp = None) -> list[bool]:
        order = sorted(range(len(parcels)), key=lambda n: parcels[n].job.id)
        stored: set[int] = set()
        for first in range(0, max(len(order), 1), _MOVED):
            numbers = order[first : first + _MOVED]
            some = [_without_lost_key(parcels[n]) for n in numbers]
            waiting = [(inbox, n) for n, one in enumerate(some, start=1) for inbox in one.inboxes]
            inboxes, waited = texts([inbox for inbox, _ in waiting]), integers([n for _, n in waiting])
            [[is_open, *_], *rows] = await self._call("arrive", at, leg, rows_of("parcel_row", some), inboxes, waited)
            if not is_open:
                raise not_open(leg)
            self._tell(rows)
            stored |= {numbers[ord_ - 1] for _, ord_, _ in rows if ord_ is not None}
        return [n in stored for n in range(len(parcels))]

    async def confirm(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> None:
        await self._call("confirm", leg, uuids(sorted(ids)))

    async def ledger(self, leg: str, side: Side, after: JobId | None = None, limit: int = 1_000) -> list[JobId]:
        start = None if after is None else UUID(bytes=after)
        return [job_id for [job_id] in await self._call("ledger", leg, side is Side.DEPARTED, start, limit)]

    async def held_keys(self, after: JobKey | None = None, limit: int = 100, at: Stamp = None) -> list[HeldKey]:
        start = (None, None) if after is None else (after.queue, after.key)
        return [HeldKey(*row) for row in await self._call("held_keys", at, *start, limit)]

    async def hold_keys(self, keys: Sequence[HeldKey], at: Stamp = None) -> None:
        if keys:
            queues, names = texts([one.queue for one in keys]), texts([one.key for one in keys])
            ids, untils = uuids([one.id for one in keys]), bigints([one.held_until for one in keys])
            await self._call("hold_keys", at, queues, names, ids, untils)

    async def add_ticks(self, uid: bytes, ticks: Sequence[Tick], at: Stamp = None) -> None:
        if ticks:
            await self._call("add_ticks", UUID(bytes=uid), rows_of("tick_row", ticks))

    async def settle(self, at: Stamp = None) -> bool:
        [[transactions]] = await self._call("settling")
        left = frozenset(transactions) & (self._unsettled or frozenset(transactions))
        self._unsettled = left or None
        return not left


def _parcel(row: Sequence[Any]) -> Parcel:
    *record, keyed, held_until, begun, inboxes = row
    return Parcel(shapes.record(record), keyed, held_until, begun, tuple(inboxes))


def _without_lost_key(parcel: Parcel) -> Parcel:
    return parcel if parcel.keyed else replace(parcel, job=replace(parcel.job, key=None))
