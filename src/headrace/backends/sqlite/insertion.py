"""insert: new jobs, each after a look at its id and its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.sqlite import groups, tenants
from headrace.backends.sqlite.delayed import lane_of, position
from headrace.backends.sqlite.depth import Depth
from headrace.backends.sqlite.entry import entries, seqs_of_ids
from headrace.backends.sqlite.replacing import can_replace, replace_waiting
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import COMPLETED, FAILED, KEYS, LIVE, RUNNING, STATES
from headrace.backends.sqlite.transaction import INLINE, Stored, Transaction, dies_at
from headrace.backends.sqlite.transitions import ReadyRow, release_new, release_one
from headrace.errors import InvalidJob
from headrace.seam.policy import STORE
from headrace.seam.records import WATCHERS, Cells, Inserted, InsertStatus, JobId, KeyUntil, Room, Row, carried
from headrace.seam.references import SIZE, oldest_hour
from headrace.types import SECTIONS

_SQL = load("insert")
ROW_BYTES = 200
_NEW = InsertStatus.NEW
_SECTIONS = frozenset(SECTIONS)
_PARAMETERS = SECTIONS[0]


def insert(tx: Transaction, rows: Sequence[Row], now: int, *, gate: bool = False) -> list[Inserted]:
    """Store new jobs; answer each row, in order. With ``gate`` only as many as there is room for."""
    if len(rows) == 1 and _insert_alone(tx, rows[0], now):
        return [Inserted(_NEW, rows[0].id)]
    known = seqs_of_ids(tx, [row.id for row in rows])
    [last] = tx.one(_SQL["last"])
    batch = _Batch(tx, now, known, last, Depth(tx) if gate else None)
    answers = [batch.add(row) for row in rows]
    batch.write()
    return answers


def _insert_alone(tx: Transaction, row: Row, now: int) -> bool:
    """Store a row without a key or a group in a known queue without rules. False: nothing is stored, as it is not
    such a row, or its id is known."""
    if row.key is not None or row.group is not None:
        return False
    found = tx.first(_SQL["alone"], (row.queue, row.id, STORE))
    if found is None:
        return False
    qid, last = found
    seq = last + 1
    job, ready = _written(tx, row, qid, seq, now)
    tx.execute(_SQL["job"], job)
    release_one(tx, ready, qid, row.queue)
    if row.reply_to is not None:
        tx.execute(_SQL["wait"], (seq, row.reply_to, now))
    return True


def _written(tx: Transaction, row: Row, qid: int, seq: int, now: int) -> tuple[tuple[Any, ...], ReadyRow]:
    """What to write of a new job that is claimable from the lane of its queue once it is due."""
    cells, queue, task, tenant, priority = row.cells, row.queue, row.task, row.tenant, row.priority
    run_at = now + row.delay if row.run_at is None else row.run_at
    expires_at = None if row.expires is None else now + row.expires
    far = 0
    parameters = cells.get(_PARAMETERS)
    if parameters is not None and len(parameters) <= INLINE and len(cells) == 1 and row.headers is None:
        size = len(parameters)
        stored: tuple[Stored, ...] = (None, parameters, None, None, None, oldest_hour(cells) if size == SIZE else None)
    else:
        size, far, stored = _packed(tx, row.headers, cells)
    size += ROW_BYTES + len(queue) + len(task) + len(tenant) + len(row.key or "") + len(row.group or "")
    lane, ready_priority = position(qid, priority, run_at, now)
    job = (
        seq, row.id, qid, lane, priority, run_at, task, tenant, row.key, row.group, now, expires_at, far, *stored,
        *carried(row),
    )  # fmt: skip
    dies = None if expires_at is None else dies_at(expires_at, run_at)
    return job, (lane, ready_priority, run_at, row.id, seq, 0, 0, 0, size, dies, 0)


def _packed(tx: Transaction, headers: bytes | None, cells: Cells) -> tuple[int, int, tuple[Stored, ...]]:
    """The size of headers and cells, whether some of them lie in ``cells``, and what to write into the row: they, and
    the day of the oldest reference."""
    if not cells.keys() <= _SECTIONS:
        raise InvalidJob(f"the sections are {SECTIONS}, but a row came with {tuple(cells)}; nothing was stored")
    size = len(headers or b"") + sum(map(len, cells.values()))
    stored = tuple([tx.put(cell) for cell in (headers, *map(cells.get, SECTIONS))])
    return size, int(any(isinstance(cell, int) for cell in stored)), (*stored, oldest_hour(cells))


def key_taken(tx: Transaction, qid: int, key: str, now: int, *, but: int | None = None) -> bool:
    """Whether a job, other than ``but``, keeps others from taking the key: live, or completed and still held."""
    owner = tx.first(_SQL["key_owner"], (qid, key))
    if owner is None or owner[0] == but:
        return False
    _, state, held_until, outlived, outlived_until = owner
    if outlived is not None:
        return not _released(tx, qid, key, outlived_until, now)
    return state is None or (state == COMPLETED and held_until > now)


def _released(tx: Transaction, qid: int, key: str, held_until: int, now: int) -> bool:
    """Whether a key that outlives its job is free by now; then it goes."""
    if held_until > now:
        return False
    tx.execute(_SQL["drop_outlived"], (qid, key))
    tx.count(qid, KEYS, -1)
    tx.fill(KEYS, -1, 0)
    return True


class _Batch:
    """The rows of one insert that turned out to be new, until they are written together."""

    def __init__(self, tx: Transaction, now: int, known: dict[JobId, int], last: int, depth: Depth | None) -> None:
        self._tx = tx
        self._now = now
        self._known = known
        self._last = last
        self._depth = depth
        self._seq = last
        self._jobs: list[tuple[Any, ...]] = []
        self._ready: list[ReadyRow] = []
        self._apart: dict[int, Row] = {}
        """By index: new jobs that have a group, or whose queue is governed."""
        self._latest: dict[tuple[int, str], tuple[int, JobId]] = {}
        """Of groups in governed queues: run_at and id of the latest."""
        self._displaces = False
        """Whether the job takes the call of another. It is written on its own: a tenant may fall asleep over it."""
        self._keys: dict[tuple[int, str], int] = {}
        self._waiters: list[tuple[int, str]] = []
        self._qids: dict[str, int] = {}
        self._governed: set[int] = set()
        self._special: set[int] = set()
        """Queues that are governed, or have a depth."""

    def add(self, row: Row) -> Inserted:
        """Decide what becomes of one row."""
        job_id, queue, key = row.id, row.queue, row.key
        if job_id in self._known:
            return self._same(self._known[job_id])
        qid = self._qids.get(queue)
        if qid is None:
            qid = self._qids[queue] = self._tx.queue(queue)
            if self._tx.rules(qid).governed:
                self._governed.add(qid)
            if qid in self._governed or (self._depth is not None and self._depth.bounds(qid)):
                self._special.add(qid)
        if key is not None and (answer := self._meet(row, qid, key)) is not None:
            return answer
        group = row.group
        if (group is not None or qid in self._special) and (room := self._admit(row, qid)):
            return Inserted(InsertStatus.FULL, job_id, room=room)
        seq = self._seq = self._seq + 1
        job, ready = _written(self._tx, row, qid, seq, self._now)
        self._jobs.append(job)
        self._ready.append(ready)
        self._known[job_id] = seq
        if key is not None:
            self._keys[qid, key] = seq
        if row.reply_to is not None:
            self._waiters.append((seq, row.reply_to))
        if self._displaces:
            self.write()
        return Inserted(_NEW, job_id)

    def write(self) -> None:
        """All that was gathered: one statement per table."""
        tx = self._tx
        known = self._set_apart() if self._apart else {}
        tx.executemany(_SQL["job"], self._jobs)
        release_new(tx, self._ready, [job[2] for job in self._jobs])
        for gid, qid in known.items():
            groups.call_new(tx, qid, gid, range(self._last + 1, self._seq + 1), self._now)
        if self._keys:
            tx.executemany(_SQL["take_key"], [(qid, key, seq) for (qid, key), seq in self._keys.items()])
        if self._waiters:
            tx.executemany(_SQL["wait"], [(seq, inbox, self._now) for seq, inbox in self._waiters])
            tx.executemany(_SQL["make_room"], [(seq, WATCHERS) for seq, _ in self._waiters if seq <= self._last])
        for gathered in (self._jobs, self._ready, self._keys, self._waiters, self._apart, self._latest):
            gathered.clear()
        self._last = self._seq
        self._displaces = False

    def _admit(self, row: Row, qid: int) -> Room | None:
        """Take in a job of a group or of a queue with rules; or return where there is no room for it."""
        if self._depth is not None and (room := self._depth.admit(qid, row.queue)):
            return room
        if row.group is not None and qid in self._governed:
            place = (self._now + row.delay if row.run_at is None else row.run_at, row.id)
            early = place < self._latest.get((qid, row.group), place)
            if early or groups.displaces(self._tx, qid, row.group, place):
                self.write()
                self._displaces = True
            self._latest[qid, row.group] = place
        if row.group is not None or qid in self._governed:
            self._apart[len(self._jobs)] = row
        return None

    def _set_apart(self) -> dict[int, int]:
        """Find the lanes of the jobs that need one of their own: return the groups whose jobs are to be
        called again, and their queues. Of a new group the first jobs are called at once."""
        known: dict[int, int] = {}
        gids: dict[tuple[int, str], tuple[int, bool]] = {}
        new: dict[int, list[int]] = {}
        for index, row in self._apart.items():
            if row.group is None:
                continue
            qid = self._jobs[index][2]
            if (qid, row.group) not in gids:
                gids[qid, row.group] = groups.find(self._tx, qid, row.group)
            gid, is_new = gids[qid, row.group]
            if is_new:
                new.setdefault(gid, []).append(index)
            else:
                known[gid] = qid
            self._lie(index, -gid, gid, 0)
        for gid, members in new.items():
            members.sort(key=lambda index: self._ready[index][2:4])
            called = members[: self._tx.rules(self._jobs[members[0]][2]).group_running]
            groups.set_called(self._tx, [(gid, self._ready[index][4]) for index in called])
            for index in called:
                self._place(index, self._jobs[index][2], gid, self._apart[index].priority)
        self._enter_turns()
        return known

    def _enter_turns(self) -> None:
        """Claimable jobs of governed queues go to the lanes of their tenants and tasks."""
        coming: dict[int, list[int]] = {}
        for index in self._apart:
            if lane_of(self._ready[index][0]) in self._governed:
                coming.setdefault(self._jobs[index][2], []).append(index)
        for qid, indexes in coming.items():
            jobs = [(self._apart[index].tenant, self._apart[index].task, self._ready[index][2]) for index in indexes]
            lanes = tenants.put(self._tx, qid, jobs)
            for index, (tenant, task, _) in zip(indexes, jobs, strict=True):
                self._place(index, lanes[tenant, task], self._ready[index][10], self._apart[index].priority)

    def _place(self, index: int, lane: int, gid: int, priority: int) -> None:
        """A new job is claimable from another lane than that of its queue."""
        lane, ready_priority = position(lane, priority, self._ready[index][2], self._now)
        self._lie(index, lane, gid, ready_priority)

    def _lie(self, index: int, lane: int, gid: int, priority: int) -> None:
        job, ready = self._jobs[index], self._ready[index]
        self._jobs[index] = (*job[:3], lane, *job[4:])
        self._ready[index] = (lane, priority, *ready[2:10], gid)

    def _fresh(self, seq: int) -> JobId | None:
        """The id of a job of this batch."""
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
        if mine is not None and row.replaces:
            self.write()
        elif mine is not None:
            self._join(mine, row)
            return Inserted(InsertStatus.DUPLICATE, self._fresh(mine) or b"")
        owner = self._tx.first(_SQL["key_owner"], (qid, key))
        if owner is None:
            return None
        seq, state, held_until, outlived, outlived_until = owner
        kept = row.key_until is KeyUntil.KEPT
        if outlived is not None:
            if _released(self._tx, qid, key, outlived_until, self._now if kept else outlived_until):
                return None
            return Inserted(InsertStatus.DUPLICATE, outlived, STATES[COMPLETED])
        held = kept and state == COMPLETED and held_until > self._now
        if state is not None and not held and not (state == FAILED and row.hold_failed):
            return None
        found = entries(self._tx, [seq])
        if not found:
            return None
        [entry] = found
        if held:
            result = self._tx.read(entry.result)
            return Inserted(InsertStatus.DONE, entry.id, STATES[entry.code], result, entry.attempt)
        if entry.code == RUNNING and row.key_until is KeyUntil.STARTED:
            return None
        if entry.code in LIVE:
            self._join(seq, row)
        status = InsertStatus.DUPLICATE
        if can_replace(entry, row):
            self.write()
            replace_waiting(self._tx, entry, row, self._now)
            status = InsertStatus.REPLACED
        return Inserted(status, entry.id, STATES[entry.code], None, entry.attempt)

    def _join(self, seq: int, row: Row) -> None:
        if row.reply_to is not None:
            self._waiters.append((seq, row.reply_to))
