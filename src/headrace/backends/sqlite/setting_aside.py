"""Jobs that cannot be read are set aside, so that they hold up no other: they become FAILED with the reason
``corrupt``, with as much of them as can be kept."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from headrace.backends.sqlite import groups, tenants
from headrace.backends.sqlite.delayed import lane_of
from headrace.backends.sqlite.readable_text import readable
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, FAILED, RUNNING
from headrace.backends.sqlite.transaction import Damaged, Transaction
from headrace.backends.sqlite.transitions import end, leave_running
from headrace.errors import HeadraceError
from headrace.seam.records import CORRUPT

log = logging.getLogger("headrace")

_SQL = load("set_aside")
_TRANSITION = load("transition")
_STEP = 2_000
_FAR = 2**62
"""Above every epoch, attempt, loss or size that was counted."""
_LOWEST = (-(2**63), -(2**63), -(2**63), b"")
_CELLS = frozenset(("null", "integer", "blob"))


def suspects(error: BaseException) -> bool:
    """Whether a statement may have failed over a job that cannot be read."""
    if isinstance(error, HeadraceError):
        return isinstance(error, Damaged)
    return isinstance(
        error, ValueError | ArithmeticError | TypeError | LookupError | apsw.ConstraintError | apsw.MismatchError
    )


def set_aside(tx: Transaction, now: int) -> int:
    """Look through all waiting and running jobs, set aside those that cannot be read, and return how many."""
    running = [row for row in tx.rows(_SQL["running"]) if not _sound(row[2:6], row[8], row[9:14], row[14:])]
    waiting = list(_waiting(tx))
    for row in running:
        if row[8]:
            _make_readable(tx, row[0], row[1], row[10:14])
        tx.execute(_SQL["hold_readably"], (row[0], readable(row[9])))
    for row in waiting:
        if row[11] and not row[12]:
            _make_readable(tx, row[4], row[10], row[13:17])
    for row in running:
        _end_running(tx, row, now)
    for row in waiting:
        _end_waiting(tx, row, now)
    found = len(running) + len(waiting)
    if found:
        log.error("%d jobs could not be read and were moved to the dead letters (reason: %s)", found, CORRUPT)
    return found


def _waiting(tx: Transaction) -> Iterable[Sequence[Any]]:
    last: Sequence[Any] = _LOWEST
    while rows := tx.rows(_SQL["waiting"], (*last, _STEP)):
        last = rows[-1][:4]
        for row in rows:
            if row[12] or not _sound(row[5:9], row[11], row[13:17], row[17:]):
                yield row


def _sound(counts: Iterable[int], is_whole: int, texts: Iterable[bytes | None], kinds: Iterable[str]) -> bool:
    return (
        bool(is_whole)
        and all(-_FAR < count < _FAR for count in counts)
        and all(text is None or _is_text(text) for text in texts)
        and _CELLS.issuperset(kinds)
    )


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _make_readable(tx: Transaction, seq: int, qid: int, texts: Sequence[bytes | None]) -> None:
    task, tenant, key, group = (None if text is None else readable(text) for text in texts)
    if texts[2] is not None and not _is_text(texts[2]):
        tx.execute(_SQL["drop_keys"], (qid, seq))
        key = None
    tx.execute(_SQL["make_readable"], (seq, task, tenant, key, group))


def _counted(counts: Sequence[int], now: int) -> tuple[int, int, int, int]:
    """Epoch, attempt, losses and size, as far as they may be believed."""
    epoch, *others = counts
    attempt, lost, size = (count if 0 <= count < _FAR else 0 for count in others)
    return epoch if -_FAR < epoch < _FAR else now, attempt, lost, size


def _end_running(tx: Transaction, row: Sequence[Any], now: int) -> None:
    seq, qid, *counts, gid, tid, whole = row[:9]
    leave_running(tx, array("q", [seq]))
    tx.count(qid, RUNNING, -1)
    if tid:
        tenants.stop(tx, [(tid, readable(row[9]))], now)
    if whole:
        _end(tx, seq, qid, counts, now)
    if gid:
        groups.leave(tx, [(qid, gid, seq)], now)


def _end_waiting(tx: Transaction, row: Sequence[Any], now: int) -> None:
    lane, priority, run_at, job_id, seq, *counts, gid, qid, whole, twice = row[:13]
    tx.execute(_TRANSITION["from_ready"], (lane, priority, run_at, job_id))
    if not whole:
        known = tx.first(_SQL["queue_of_lane"], (lane_of(lane),))
        if known is None:
            return
        [qid] = known
        tx.execute(_SQL["drop_keys"], (qid, seq))
        if gid:
            groups.leave(tx, [(qid, gid, seq)], now)
        seq = None if tx.first(_SQL["known"], (job_id,)) else _stand_in(tx, qid, row, now)
    tx.count(qid, AVAILABLE, -1)
    tenants.drop(tx, qid, lane, readable(row[14] or b""), now)
    if seq is not None and not twice:
        _end(tx, seq, qid, counts, now)
    if whole and gid:
        groups.leave(tx, [(qid, gid, seq)], now)


def _stand_in(tx: Transaction, qid: int, row: Sequence[Any], now: int) -> int:
    """A row for a job that has none any more: its number."""
    _, priority, run_at, job_id, number, *_ = row
    [last] = tx.one(_SQL["last"])
    seq: int = max(last, number if number < _FAR else 0) + 1
    tx.execute(_SQL["stand_in"], (seq, job_id, qid, priority, run_at, now))
    return seq


def _end(tx: Transaction, seq: int, qid: int, counts: Sequence[int], now: int) -> None:
    epoch, attempt, lost, size = _counted(counts, now)
    end(tx, FAILED, [(seq, FAILED, now, 0, epoch, attempt, lost, size, CORRUPT, None)], [qid])
