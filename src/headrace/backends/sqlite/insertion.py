"""insert: new jobs, each after a look at its id and its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.sqlite.entry import entries, seqs_of_ids
from headrace.backends.sqlite.places import ReadyRow, release_new
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import COMPLETED, FAILED, LIVE, STATES
from headrace.backends.sqlite.transaction import INLINE, Stored, Transaction, dies_at
from headrace.errors import InvalidJob
from headrace.records import Cells, Inserted, InsertStatus, JobId, Row
from headrace.types import SECTIONS

_SQL = load("insert")
_ROW_BYTES = 200
_NEW = InsertStatus.NEW
_SECTIONS = frozenset(SECTIONS)
_PARAMETERS = SECTIONS[0]


def insert(tx: Transaction, rows: Sequence[Row], now: int) -> list[Inserted]:
    """Store new jobs; answer each row, in order."""
    known = seqs_of_ids(tx, [row.id for row in rows])
    [last] = tx.one(_SQL["last"])
    batch = _Batch(tx, now, known, last)
    answers = [batch.add(row) for row in rows]
    batch.write()
    return answers


def key_taken(tx: Transaction, qid: int, key: str, now: int, *, but: int | None = None) -> bool:
    """Whether a job, other than ``but``, keeps others from taking the key: live, or completed and still held."""
    holder = tx.first(_SQL["key_holder"], (qid, key))
    if holder is None or holder[0] == but:
        return False
    _, state, held_until = holder
    return state is None or (state == COMPLETED and held_until > now)


class _Batch:
    """The rows of one insert that turned out to be new, until they are written together."""

    def __init__(self, tx: Transaction, now: int, known: dict[JobId, int], last: int) -> None:
        self._tx = tx
        self._now = now
        self._known = known
        self._last = last
        self._seq = last
        self._jobs: list[tuple[Any, ...]] = []
        self._ready: list[ReadyRow] = []
        self._keys: dict[tuple[int, str], int] = {}
        self._waiters: list[tuple[int, str]] = []
        self._qids: dict[str, int] = {}

    def add(self, row: Row) -> Inserted:
        """Decide what becomes of one row."""
        job_id, queue, key, cells, priority = row.id, row.queue, row.key, row.cells, row.priority
        if job_id in self._known:
            return self._same(self._known[job_id])
        qid = self._qids.get(queue)
        if qid is None:
            qid = self._qids[queue] = self._tx.queue(queue)
        if key is not None and (answer := self._meet(row, qid, key)) is not None:
            return answer
        seq = self._seq = self._seq + 1
        now = self._now
        run_at = now + row.delay if row.run_at is None else row.run_at
        expires_at = None if row.expires is None else now + row.expires
        far = 0
        parameters = cells.get(_PARAMETERS)
        if parameters is not None and len(parameters) <= INLINE and len(cells) == 1 and row.headers is None:
            stored: tuple[Stored, ...] = (None, parameters, None, None, None)
            size = len(parameters)
        else:
            size, far, stored = self._pack(row.headers, cells)
        size += _ROW_BYTES + len(queue) + len(row.task) + len(row.tenant) + len(key or "")
        self._jobs.append((
            seq, job_id, qid, priority, run_at, row.task, row.tenant, key, now, expires_at,
            row.max_attempts, row.timeout, row.result_ttl, far, *stored,
        ))  # fmt: skip
        dies = None if expires_at is None else dies_at(expires_at, run_at)
        self._ready.append((qid, priority, run_at, job_id, seq, 0, 0, 0, size, dies))
        self._known[job_id] = seq
        if key is not None:
            self._keys[qid, key] = seq
        if row.reply_to is not None:
            self._waiters.append((seq, row.reply_to))
        return Inserted(_NEW, job_id)

    def write(self) -> None:
        """All at once: one statement per table."""
        tx = self._tx
        tx.executemany(_SQL["job"], self._jobs)
        release_new(tx, self._ready)
        if self._keys:
            tx.executemany(_SQL["take_key"], [(qid, key, seq) for (qid, key), seq in self._keys.items()])
        if self._waiters:
            tx.executemany(_SQL["wait"], self._waiters)

    def _pack(self, headers: bytes | None, cells: Cells) -> tuple[int, int, tuple[Stored, ...]]:
        """The size of headers and cells, whether some of them lie far, and what to write into the row."""
        if not cells.keys() <= _SECTIONS:
            raise InvalidJob(f"the sections are {SECTIONS}, but a row came with {tuple(cells)}; nothing was stored")
        size = len(headers or b"") + sum(map(len, cells.values()))
        stored = tuple([self._tx.put(cell) for cell in (headers, *map(cells.get, SECTIONS))])
        return size, int(any(isinstance(cell, int) for cell in stored)), stored

    def _fresh(self, seq: int) -> JobId | None:
        """The id of a job of this very batch."""
        if seq <= self._last:
            return None
        job_id: JobId = self._jobs[seq - self._last - 1][1]
        return job_id

    def _same(self, seq: int) -> Inserted:
        if (job_id := self._fresh(seq)) is not None:
            return Inserted(InsertStatus.SAME, job_id)
        [entry] = entries(self._tx, [seq])
        return Inserted(InsertStatus.SAME, entry.id, STATES[entry.code], None, entry.attempt)

    def _meet(self, row: Row, qid: int, key: str) -> Inserted | None:
        """The answer of the job that keeps the row from taking its key, if there is one."""
        mine = self._keys.get((qid, key))
        if mine is not None:
            self._join(mine, row)
            return Inserted(InsertStatus.DUPLICATE, self._fresh(mine) or b"")
        holder = self._tx.first(_SQL["key_holder"], (qid, key))
        if holder is None:
            return None
        seq, state, held_until = holder
        held = state == COMPLETED and held_until > self._now
        if state is not None and not held and not (state == FAILED and row.hold_failed):
            return None
        [entry] = entries(self._tx, [seq])
        if held:
            result = self._tx.read(entry.result)
            return Inserted(InsertStatus.DONE, entry.id, STATES[entry.code], result, entry.attempt)
        if entry.code in LIVE:
            self._join(seq, row)
        return Inserted(InsertStatus.DUPLICATE, entry.id, STATES[entry.code], None, entry.attempt)

    def _join(self, seq: int, row: Row) -> None:
        if row.reply_to is not None:
            self._waiters.append((seq, row.reply_to))
