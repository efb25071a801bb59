"""insert: new jobs, each after a look at its id and its key."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.sqlite.entry import entries, seqs_of_ids
from headrace.backends.sqlite.places import ReadyRow, release_new
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, COMPLETED, FAILED, LIVE, STATES
from headrace.backends.sqlite.transaction import INLINE, Stored, Transaction, dies_at
from headrace.errors import InvalidJob
from headrace.records import Inserted, InsertStatus, JobId, Row
from headrace.types import SECTIONS

_SQL = load("insert")
_ROW_BYTES = 200
_NEW = InsertStatus.NEW


def insert(tx: Transaction, rows: Sequence[Row], now: int) -> list[Inserted]:
    """Store new jobs; answer each row, in order."""
    known = seqs_of_ids(tx, [row.id for row in rows])
    [seq] = tx.one(_SQL["last"])
    batch = _Batch(tx, now, known, seq)
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

    def __init__(self, tx: Transaction, now: int, known: dict[JobId, int], seq: int) -> None:
        self._tx = tx
        self._now = now
        self._known = known
        self._seq = seq
        self._jobs: list[tuple[object, ...]] = []
        self._ready: list[ReadyRow] = []
        self._keys: dict[tuple[int, str], int] = {}
        self._waiters: list[tuple[int, str]] = []
        self._fresh: dict[int, JobId] = {}
        self._counts: dict[int, int] = {}

    def add(self, row: Row) -> Inserted:
        job_id = row.id
        if job_id in self._known:
            return self._same(self._known[job_id])
        qid = self._tx.queue(row.queue)
        key = row.key
        if key is not None and (answer := self._meet(row, qid, key)) is not None:
            return answer
        seq = self._seq = self._seq + 1
        now = self._now
        run_at = now + row.delay if row.run_at is None else row.run_at
        expires_at = None if row.expires is None else now + row.expires
        size, far, cells = self._pack(row)
        self._jobs.append((
            seq, job_id, qid, row.priority, run_at, row.task, row.tenant, key, now, expires_at,
            row.max_attempts, row.timeout, row.result_ttl, far, *cells,
        ))  # fmt: skip
        self._ready.append((qid, row.priority, run_at, job_id, seq, 0, 0, 0, size, dies_at(expires_at, run_at)))
        self._known[job_id] = seq
        self._fresh[seq] = job_id
        self._counts[qid] = self._counts.get(qid, 0) + 1
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
        for qid, number in self._counts.items():
            tx.count(qid, AVAILABLE, number)
            tx.wake_queue(qid)

    def _pack(self, row: Row) -> tuple[int, int, Sequence[Stored]]:
        """The row's size, whether something lies far, and its headers and cells as they are stored."""
        get = row.cells.get
        cells: Sequence[bytes | None] = (row.headers, *map(get, SECTIONS))
        sizes = [len(cell) for cell in cells if cell is not None]
        if len(sizes) - (row.headers is not None) != len(row.cells):
            raise InvalidJob(f"the sections are {SECTIONS}, but a row came with {tuple(row.cells)}; nothing was stored")
        size = _ROW_BYTES + len(row.queue) + len(row.task) + len(row.tenant) + len(row.key or "") + sum(sizes)
        if max(sizes, default=0) <= INLINE:
            return size, 0, cells
        return size, 1, [self._tx.put(cell) for cell in cells]

    def _same(self, seq: int) -> Inserted:
        if seq in self._fresh:
            return Inserted(InsertStatus.SAME, self._fresh[seq])
        [entry] = entries(self._tx, [seq])
        return Inserted(InsertStatus.SAME, entry.id, STATES[entry.code], None, entry.attempt)

    def _meet(self, row: Row, qid: int, key: str) -> Inserted | None:
        """The answer of the job that keeps the row from taking its key, if there is one."""
        seq = self._keys.get((qid, key))
        if seq is not None:
            self._join(seq, row)
            return Inserted(InsertStatus.DUPLICATE, self._fresh[seq])
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
