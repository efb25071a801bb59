"""depart and arrive: a whole job leaves the tables, or comes into them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from headrace.backends.parcels import WHOLE, encode, not_open, row_of
from headrace.backends.sqlite.entry import Entry, entries, seqs_of_ids
from headrace.backends.sqlite.insertion import ROW_BYTES, key_taken
from headrace.backends.sqlite.readable_text import readable
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, CODES, PAUSED, RUNNING
from headrace.backends.sqlite.transaction import Transaction
from headrace.backends.sqlite.transitions import Waiting, end, forget, leave, park, release
from headrace.seam.records import JobId, Record, carried
from headrace.seam.references import oldest_hour
from headrace.seam.transfers import Parcel
from headrace.types import SECTIONS

_SQL = load("transfer")
_INSERT = load("insert")


def check_open(tx: Transaction, leg: str) -> None:
    if tx.first(_SQL["is_open"], (leg,)) is None:
        raise not_open(leg)


def depart(tx: Transaction, leg: str, ids: Sequence[JobId], now: int) -> list[Parcel]:
    """Jobs that do not run leave all tables, and become parcels."""
    check_open(tx, leg)
    known = seqs_of_ids(tx, ids)
    found = [_depart(tx, leg, known[job_id], now) for job_id in dict.fromkeys(ids) if job_id in known]
    return [parcel for parcel in found if parcel is not None]


def _depart(tx: Transaction, leg: str, seq: int, now: int) -> Parcel | None:
    [entry] = entries(tx, [seq])
    corrupt = entry.code > PAUSED and entry.finished_at is None
    if entry.code == RUNNING or corrupt:
        return None
    parcel = _parcel(tx, entry, now)
    leave(tx, entry, now)
    forget(tx, array("q", [seq]))
    named = (entry.queue, entry.key) if parcel.keyed else (None, None)
    tx.execute(_SQL["depart"], (leg, entry.id, *named, encode(parcel)))
    return parcel


def _parcel(tx: Transaction, entry: Entry, now: int) -> Parcel:
    owner = None if entry.key is None else tx.first(_INSERT["key_owner"], (entry.qid, entry.key))
    record = entry.record(tx, WHOLE, now)
    inboxes = tuple(readable(inbox) for [inbox] in tx.rows(_SQL["inboxes"], (entry.seq,)))
    keyed = owner is not None and owner[0] == entry.seq
    return Parcel(record, keyed, (entry.held_until or 0) if record.held else 0, entry.epoch > 0, inboxes)


def arrive(tx: Transaction, leg: str, parcels: Sequence[Parcel], now: int) -> list[bool]:
    """Store jobs as they were; answer for each whether it was stored now."""
    check_open(tx, leg)
    known = seqs_of_ids(tx, [parcel.job.id for parcel in parcels])
    answers = []
    for parcel in parcels:
        listed = tx.first(_SQL["arrive"], (leg, parcel.job.id)) is None
        fresh = not listed and parcel.job.id not in known
        if fresh:
            known[parcel.job.id] = _store(tx, parcel, now)
        answers.append(fresh)
    return answers


def _store(tx: Transaction, parcel: Parcel, now: int) -> int:
    job, row = parcel.job, row_of(parcel.job)
    qid = tx.queue(job.queue)
    key = job.key if parcel.keyed else None
    if key is not None and key_taken(tx, qid, key, now):
        key = None
    seq = int(tx.one(_INSERT["last"])[0]) + 1
    headers, *cells, error, result = [
        tx.put(cell) for cell in (job.headers, *map(job.cells.get, SECTIONS), job.error, job.result)
    ]
    far = int(any(isinstance(cell, int) for cell in (headers, *cells, error)))
    tx.execute(_INSERT["job"], (
        seq, job.id, qid, 0, job.priority, job.run_at, job.task, job.tenant, key, job.group, job.enqueued_at,
        job.expires_at, far, headers, *cells, oldest_hour(job.cells), *carried(row),
    ))  # fmt: skip
    tx.execute(_SQL["complete"], (seq, error, far))
    if key is not None:
        tx.execute(_INSERT["take_key"], (qid, key, seq))
    for age, inbox in enumerate(reversed(parcel.inboxes)):
        tx.execute(_INSERT["wait"], (seq, inbox, now - age))
    code, size = CODES[job.state], _weight(job, key)
    epoch = job.epoch if parcel.begun else -job.epoch
    if code == AVAILABLE:
        waiting = Waiting(
            qid, 0, job.priority, job.run_at, job.id, seq, epoch, job.attempt, job.lost, size, job.expires_at, job.task,
            job.tenant, job.group,
        )  # fmt: skip
        release(tx, waiting, now)
    elif code == PAUSED:
        park(tx, seq, qid, epoch, job.attempt, job.lost, size)
    else:
        ended = (
            seq, code, job.finished_at or 0, parcel.held_until, epoch, job.attempt, job.lost, size, job.reason, result,
        )  # fmt: skip
        end(tx, code, [ended], [qid])
    return seq


def _weight(job: Record, key: str | None) -> int:
    texts = len(job.queue) + len(job.task) + len(job.tenant) + len(key or "") + len(job.group or "")
    blobs = len(job.headers or b"") + len(job.error or b"") + len(job.result or b"")
    return ROW_BYTES + texts + blobs + sum(map(len, job.cells.values()))
