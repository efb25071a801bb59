"""Whole jobs given away and taken in, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.memory.capability import Capability
from headrace.backends.memory.entry import Entry
from headrace.backends.memory.leg import Leg
from headrace.backends.parcels import WHOLE, not_confirmed, not_open, row_of
from headrace.seam.records import JobId, JobKey, Stamp
from headrace.seam.ticks import Tick
from headrace.seam.transfers import HeldKey, Parcel, Side
from headrace.types import JobState


class MemoryTransfers(Capability):
    """The operations of a :class:`~headrace.seam.transfers.TransferStore`."""

    async def open_leg(self, leg: str, at: Stamp = None) -> None:
        with self._store.lock:
            self._store.legs.setdefault(leg, Leg(set(), set(), {}))

    async def close_leg(self, leg: str, at: Stamp = None) -> None:
        with self._store.lock:
            known = self._store.legs.get(leg)
            if known is not None and known.parcels:
                raise not_confirmed(leg)
            self._store.legs.pop(leg, None)

    def _leg(self, leg: str) -> Leg:
        if (known := self._store.legs.get(leg)) is None:
            raise not_open(leg)
        return known

    async def depart(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> list[Parcel]:
        with self._store.lock:
            now, known = self._begin(at), self._leg(leg)
            found = [self._store.jobs.get(job_id) for job_id in dict.fromkeys(ids)]
            parcels = [self._parcel(one, now) for one in found if one and one.state is not JobState.RUNNING]
            for parcel in parcels:
                self._store.remove(self._store.jobs[parcel.job.id])
                known.departed.add(parcel.job.id)
                known.parcels[parcel.job.id] = parcel
            return parcels

    def _parcel(self, entry: Entry, now: int) -> Parcel:
        keyed = entry.key is not None and self._store.keys.get((entry.queue, entry.key)) == entry.id
        inboxes = tuple(self._store.inboxes.get(entry.id, ()))
        record = self._store.record(entry, WHOLE, now)
        return Parcel(record, keyed, entry.held_until if record.held else 0, entry.begun, inboxes)

    async def parcels(
        self, leg: str, names: Sequence[JobId | JobKey] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Parcel]:
        with self._store.lock:
            known = self._store.legs.get(leg)
            found = sorted(known.parcels.values(), key=lambda one: one.job.id) if known else []
            return [one for one in found if names is None or _named(one, names)][:limit]

    async def arrive(self, leg: str, parcels: Sequence[Parcel], at: Stamp = None) -> list[bool]:
        with self._store.lock:
            now, known = self._begin(at), self._leg(leg)
            stored = [self._arrive(known, parcel, now) for parcel in parcels]
            self._sort({one.job.state for one in parcels})
            return stored

    def _sort(self, states: set[JobState]) -> None:
        """Those that arrived may have ended before others that are here."""
        for state in states & self._store.ended.keys():
            self._store.ended[state] = _by_end(self._store.ended[state])
        if JobState.FAILED in states:
            self._store.dead.of = {tenant: _by_end(theirs) for tenant, theirs in self._store.dead.of.items()}

    def _arrive(self, leg: Leg, parcel: Parcel, now: int) -> bool:
        job = parcel.job
        known = job.id in leg.arrived or job.id in self._store.jobs
        leg.arrived.add(job.id)
        if known:
            return False
        entry = _entry(parcel)
        if not parcel.keyed or job.key is None or self._store.key_owner(job.queue, job.key, now) is not None:
            entry.key = None
        self._store.add(entry)
        for inbox in parcel.inboxes:
            self._store.watch(job.id, inbox)
        if job.state is JobState.AVAILABLE:
            self._store.publish(f"queue:{job.queue}")
        return True

    async def confirm(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> None:
        with self._store.lock:
            if (known := self._store.legs.get(leg)) is not None:
                for job_id in ids:
                    known.parcels.pop(job_id, None)

    async def ledger(self, leg: str, side: Side, after: JobId | None = None, limit: int = 1_000) -> list[JobId]:
        with self._store.lock:
            known = self._store.legs.get(leg)
            listed = set() if known is None else known.departed if side is Side.DEPARTED else known.arrived
            return sorted(job_id for job_id in listed if after is None or job_id > after)[:limit]

    async def held_keys(self, after: JobKey | None = None, limit: int = 100, at: Stamp = None) -> list[HeldKey]:
        with self._store.lock:
            now, start = self._begin(at), None if after is None else (after.queue, after.key)
            held = sorted(
                (place, job)
                for place, job in self._store.outlived.items()
                if job[1] > now and (start is None or place > start)
            )
            return [HeldKey(*place, *job) for place, job in held[:limit]]

    async def hold_keys(self, keys: Sequence[HeldKey], at: Stamp = None) -> None:
        with self._store.lock:
            now = self._begin(at)
            for one in keys:
                if self._store.by_key(one.queue, one.key) is None and not self._store.outliving(
                    one.queue, one.key, now
                ):
                    self._store.outlived[one.queue, one.key] = one.id, one.held_until

    async def add_ticks(self, uid: bytes, ticks: Sequence[Tick], at: Stamp = None) -> None:
        with self._store.lock:
            self._store.ledger.enter(uid, ticks)

    async def settle(self, at: Stamp = None) -> bool:
        return True


def _named(parcel: Parcel, names: Sequence[JobId | JobKey]) -> bool:
    job = parcel.job
    return job.id in names or (parcel.keyed and job.key is not None and JobKey(job.queue, job.key) in names)


def _by_end(jobs: dict[JobId, Entry]) -> dict[JobId, Entry]:
    return dict(sorted(jobs.items(), key=lambda item: (item[1].finished_at or 0, item[0])))


def _entry(parcel: Parcel) -> Entry:
    job = parcel.job
    entry = Entry(row_of(job), job.enqueued_at)
    entry.expires_at, entry.epoch, entry.attempt, entry.lost = job.expires_at, job.epoch, job.attempt, job.lost
    entry.begun, entry.error, entry.result, entry.held_until = parcel.begun, job.error, job.result, parcel.held_until
    entry.state, entry.finished_at, entry.reason = job.state, job.finished_at, job.reason
    return entry
