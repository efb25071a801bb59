"""Whole jobs given away and taken in, in one shard."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from headrace.backends.parcels import WHOLE, not_confirmed, not_open, row_of
from headrace.backends.portions import slices
from headrace.backends.redis import marshalling
from headrace.backends.redis.capability import Capability
from headrace.backends.redis.job_layout import State, body, encode
from headrace.backends.redis.marshalling import at_arg, or_false
from headrace.backends.redis.schedule_layout import pack_tick
from headrace.backends.states import CODES
from headrace.seam.records import JobId, JobKey, Stamp
from headrace.seam.ticks import Tick
from headrace.seam.transfers import HeldKey, Parcel, Side

_MOVED = 100
"""Jobs that one script moves."""
_FORGOTTEN = 2_000
"""Entries of each list of a ledger that one script removes."""
_BEGUN = 4


class RedisTransfers(Capability):
    """The operations of a :class:`~headrace.seam.transfers.TransferStore`."""

    async def open_leg(self, leg: str, at: Stamp = None) -> None:
        await self._run("leg", leg, 1, 0)

    async def close_leg(self, leg: str, at: Stamp = None) -> None:
        while more := await self._run("leg", leg, 0, _FORGOTTEN):
            if more < 0:
                raise not_confirmed(leg)

    async def depart(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> list[Parcel]:
        found: list[Parcel] = []
        for some in slices(list(dict.fromkeys(ids)), _MOVED) or [()]:
            answer = await self._run("depart", at_arg(at), leg, b"".join(some))
            if answer is None:
                raise not_open(leg)
            found += map(_parcel, answer)
        return found

    async def parcels(
        self, leg: str, names: Sequence[JobId | JobKey] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Parcel]:
        keys = [(name.queue, name.key) for name in names or () if isinstance(name, JobKey)]
        ids = [name for name in names or () if not isinstance(name, JobKey)]
        answer = await self._run("parcels", leg, int(names is not None), b"".join(ids), encode(keys), limit)
        return [_parcel(one) for one in answer]

    async def arrive(
        self, leg: str, parcels: Sequence[Parcel], at: Stamp = None, known: Collection[JobId] = ()
    ) -> list[bool]:
        """``known``: ids that are in use in another shard."""
        answers: list[bool] = []
        for some in slices(parcels, _MOVED) or [()]:
            args = [arg for parcel in some for arg in _arrive_args(parcel, parcel.job.id in known)]
            answer = await self._run("arrive", at_arg(at), leg, *args)
            if answer is None:
                raise not_open(leg)
            answers += [stored == 1 for stored in answer]
        return answers

    async def confirm(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> None:
        for some in slices(ids, _MOVED):
            await self._run("confirm", leg, b"".join(some))

    async def ledger(self, leg: str, side: Side, after: JobId | None = None, limit: int = 1_000) -> list[JobId]:
        found: list[JobId] = await self._run("ledger", leg, side.value[0], after or b"", limit)
        return found

    async def held_keys(self, after: JobKey | None = None, limit: int = 100, at: Stamp = None) -> list[HeldKey]:
        start = ("", "", 0) if after is None else (after.queue, after.key, 1)
        return [
            HeldKey(queue.decode(), key.decode(), job_id, int(until))
            for queue, key, job_id, until in await self._run("held_keys", at_arg(at), *start, limit)
        ]

    async def hold_keys(self, keys: Sequence[HeldKey], at: Stamp = None) -> None:
        for some in slices(keys, _MOVED):
            flat = [part for one in some for part in (one.queue, one.key, one.id, one.held_until)]
            await self._run("hold_keys", at_arg(at), *flat)

    async def add_ticks(self, uid: bytes, ticks: Sequence[Tick], at: Stamp = None) -> None:
        for some in slices(ticks, _MOVED):
            flat = [part for one in some for part in (one.slot, one.planned_at, pack_tick(one))]
            await self._run("add_ticks", uid, *flat)

    async def settle(self, at: Stamp = None) -> bool:
        return True


def _parcel(answer: Sequence[Any]) -> Parcel:
    job_id, queue, job, packed, cells, error, result, keyed, inboxes, left_at = answer
    state = State(packed)
    read = (job_id, job, packed, cells, error, result, None, b"", None)
    record = marshalling.record(read, {state.qid: queue.decode()}, int(left_at), WHOLE)
    held_until = state.held_until if record.held else 0
    return Parcel(record, keyed == 1, held_until, state.flags >= _BEGUN, tuple(inbox.decode() for inbox in inboxes))


def _arrive_args(parcel: Parcel, known: bool) -> tuple[JobId, bytes, bytes, bytes, bytes]:
    job = parcel.job if parcel.keyed else replace(parcel.job, key=None)
    row = row_of(job)
    marshalling.checked([row])
    size = marshalling.weight(row) + len(job.error or b"") + len(job.result or b"")
    facts = (
        job.queue, CODES[job.state], job.priority, max(0, job.run_at), job.enqueued_at, job.expires_at or 0,
        job.finished_at or 0, parcel.held_until, job.epoch, job.attempt, job.lost, job.reason, parcel.begun,
        or_false(job.key) is not False, job.group is not None, job.error is not None, job.result is not None, size,
        parcel.inboxes, known,
    )  # fmt: skip
    return job.id, encode(facts), body(row), job.error or b"", job.result or b""
