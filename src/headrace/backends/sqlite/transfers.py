"""Whole jobs given away and taken in, in a SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.parcels import decode, not_confirmed
from headrace.backends.portions import slices
from headrace.backends.sqlite import ledger
from headrace.backends.sqlite.connection_thread import Capability
from headrace.backends.sqlite.insertion import key_taken
from headrace.backends.sqlite.parcels import arrive, depart
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import KEYS
from headrace.backends.sqlite.transaction import Session, Transaction
from headrace.seam.records import JobId, JobKey, Stamp
from headrace.seam.ticks import Tick, TickNote
from headrace.seam.transfers import HeldKey, Parcel, Side

_SQL = load("transfer")
_MOVED = 250
"""Jobs that one transaction moves."""
_FORGOTTEN = 5_000
"""Entries of a ledger that one transaction removes."""


class SqliteTransfers(Capability):
    """The operations of a :class:`~headrace.seam.transfers.TransferStore`."""

    async def open_leg(self, leg: str, at: Stamp = None) -> None:
        await self._write(lambda tx, _: tx.execute(_SQL["open"], (leg,)) and None, at)

    async def close_leg(self, leg: str, at: Stamp = None) -> None:
        more = True
        while more:
            more = await self._write(lambda tx, _: _close(tx, leg), at)

    async def depart(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> list[Parcel]:
        found: list[Parcel] = []
        for some in slices(ids, _MOVED) or [()]:
            found += await self._write(lambda tx, now, some=some: depart(tx, leg, some, now), at)  # type: ignore[misc]
        return found

    async def parcels(
        self, leg: str, names: Sequence[JobId | JobKey] | None = None, limit: int = 100, at: Stamp = None
    ) -> list[Parcel]:
        return await self._read(lambda session, _: _parcels(session, leg, names, limit), at)

    async def arrive(self, leg: str, parcels: Sequence[Parcel], at: Stamp = None) -> list[bool]:
        answers: list[bool] = []
        for some in slices(parcels, _MOVED) or [()]:
            answers += await self._write(lambda tx, now, some=some: arrive(tx, leg, some, now), at)  # type: ignore[misc]
        return answers

    async def confirm(self, leg: str, ids: Sequence[JobId], at: Stamp = None) -> None:
        named = [(leg, job_id) for job_id in ids]
        await self._write(lambda tx, _: tx.executemany(_SQL["confirm"], named) and None, at)

    async def ledger(self, leg: str, side: Side, after: JobId | None = None, limit: int = 1_000) -> list[JobId]:
        bound = leg, after or b"", limit
        return await self._read(lambda session, _: [one for [one] in session.rows(_SQL[side], bound)], None)

    async def held_keys(self, after: JobKey | None = None, limit: int = 100, at: Stamp = None) -> list[HeldKey]:
        return await self._read(lambda session, now: _held_keys(session, after, limit, now), at)

    async def hold_keys(self, keys: Sequence[HeldKey], at: Stamp = None) -> None:
        await self._write(lambda tx, now: _hold_keys(tx, keys, now), at)

    async def add_ticks(self, uid: bytes, ticks: Sequence[Tick], at: Stamp = None) -> None:
        await self._write(lambda tx, _: _add_ticks(tx, uid, ticks), at)

    async def settle(self, at: Stamp = None) -> bool:
        return True


def _close(tx: Transaction, leg: str) -> bool:
    """Close the leg, and forget a part of its ledger; whether there is more."""
    if tx.first(_SQL["parcels"], (leg, 1)) is not None:
        raise not_confirmed(leg)
    tx.execute(_SQL["close"], (leg,))
    for forget in ("forget_departed", "forget_arrived"):
        tx.execute(_SQL[forget], (leg, _FORGOTTEN))
    return any(tx.first(_SQL[side], (leg, b"", 1)) is not None for side in Side)


def _parcels(session: Session, leg: str, names: Sequence[JobId | JobKey] | None, limit: int) -> list[Parcel]:
    if names is None:
        return [decode(body) for [body] in session.rows(_SQL["parcels"], (leg, limit))]
    found: dict[JobId, bytes] = {}
    for name in names:
        by_key = isinstance(name, JobKey)
        sql = _SQL["parcel_of_key" if by_key else "parcel"]
        found |= dict(session.rows(sql, (leg, name.queue, name.key) if isinstance(name, JobKey) else (leg, name)))
    return [decode(found[job_id]) for job_id in sorted(found)[:limit]]


def _held_keys(session: Session, after: JobKey | None, limit: int, now: int) -> list[HeldKey]:
    start: tuple[int, str] = (0, "")
    if after is not None:
        row = session.first(_SQL["qid_of"], (after.queue,))
        start = (0 if row is None else row[0]), after.key
    return [HeldKey(*row) for row in session.rows(_SQL["held_keys"], (*start, now, limit))]


def _hold_keys(tx: Transaction, keys: Sequence[HeldKey], now: int) -> None:
    for one in keys:
        qid = tx.queue(one.queue)
        key_taken(tx, qid, one.key, now)  # one that was held until now goes
        if tx.first(_SQL["hold_key"], (qid, one.key, one.held_until, one.id)) is not None:
            tx.count(qid, KEYS, 1)
            tx.fill(KEYS, 1, 0)


def _add_ticks(tx: Transaction, uid: bytes, ticks: Sequence[Tick]) -> None:
    known = ledger.known(tx, uid, [tick.slot for tick in ticks])
    new = [tick for tick in ticks if tick.slot not in known]
    ledger.add(
        tx,
        [(uid, one.slot, one.run_at, ledger.CODES[one.outcome], one.planned_at, one.count, one.job) for one in new],
    )
    ledger.note(tx, [TickNote(uid, one.slot, one.state, one.waited or 0, one.ran or 0) for one in new if one.state])
