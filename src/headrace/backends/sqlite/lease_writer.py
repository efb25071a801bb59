"""Jobs as a claim returns them. Those of a governed queue become RUNNING here, all together when the claim is done with
the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.claims import Taken
from headrace.backends.sqlite.entry import read_cells
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, RUNNING
from headrace.backends.sqlite.tenant_jobs import Run
from headrace.backends.sqlite.transaction import Damaged, Session, Stored, Transaction
from headrace.backends.sqlite.transitions import ExpiredRow, expire, next_epoch
from headrace.seam.records import Cells, Claim, JobId, Leased
from headrace.types import SECTIONS

_SQL = load("turn")
_STATEMENTS = {
    "head": (_SQL["lease_head"], _SQL["leave_head"]),
    "run": (_SQL["lease_run"], _SQL["leave_run"]),
    "job": (_SQL["lease"], load("transition")["from_ready"]),
}
"""What leases jobs, and takes them out of ``ready``: jobs at the head of a priority, other jobs that follow each other,
and single ones."""

EXPIRED_AT_ONCE = 250
"""A claim cancels at most this many expired jobs. It ends where it meets another."""
_NEVER = 2**31
"""More losses than any job has."""

_Rows = list[tuple[Any, ...]]
_NOTHING: tuple[str, ...] = ()


class SqliteTaken(Taken):
    """What a claim from a file has taken, and passed over."""

    def __init__(self, req: Claim) -> None:
        super().__init__(req)
        self.passed_in: set[int] = set()
        """The queues of jobs that were passed over."""
        self.passed: dict[JobId, tuple[int, int]] = {}
        """Jobs of governed queues that were passed over: their tenants, and since when they are due."""
        self.lost_bound = _NEVER if req.lost_below is None else req.lost_below


def leased(tx: Session, queue: str, rows: _Rows, want: frozenset[str] | None, now: int) -> list[Leased]:
    """Jobs of a queue that is not governed, as ``claim.take`` read them, under their new leases."""
    jobs = []
    for (
        priority, run_at, job_id, epoch, attempt, lost, task, tenant, key, enqueued_at, max_attempts, timeout,
        result_ttl, far, headers, error, parameters, vm_state, metadata, blob, group, _,
    ) in rows:  # fmt: skip
        left = _NOTHING
        if far != 0 or want is not None or vm_state is not None or metadata is not None or blob is not None:
            stored = parameters, vm_state, metadata, blob
            headers, error, cells = _read(tx, far, headers, error, stored, want)
            left = _left(stored, want)
        else:
            cells = {} if parameters is None else {"parameters": parameters}
        # The epoch is next_epoch's; its usual answer is given here, without a call for every job.
        jobs.append(Leased(
            job_id, queue, task, cells, now if -now < epoch < now else next_epoch(epoch, now), tenant, key, priority,
            run_at, enqueued_at, attempt, lost, max_attempts, timeout, result_ttl, headers, error, group, epoch > 0,
            left,
        ))  # fmt: skip
    return jobs


def _read(
    tx: Session, far: int | None, headers: Stored, error: Stored, cells: Sequence[Stored], want: frozenset[str] | None
) -> tuple[bytes | None, bytes | None, Cells]:
    """Headers, error and the wanted cells of a job, big ones too."""
    if far is None:  # there is no such job
        raise Damaged
    return tx.read(headers), tx.read(error), read_cells(tx, cells, want)


def _left(cells: Sequence[Stored], want: frozenset[str] | None) -> tuple[str, ...]:
    """The sections that the job has, and that are not wanted."""
    if want is None:
        return _NOTHING
    return tuple([name for name, cell in zip(SECTIONS, cells, strict=True) if cell is not None and name not in want])


def spared(tx: Session, cells: Sequence[Stored], want: frozenset[str] | None) -> int:
    """Bytes of the cells that are not wanted."""
    if want is None:
        return 0
    return sum(tx.weigh(cell) for name, cell in zip(SECTIONS, cells, strict=True) if name not in want)


class LeaseWriter:
    """What one claim leases from one governed queue."""

    def __init__(self, tx: Transaction, qid: int, queue: str, taken: SqliteTaken, now: int) -> None:
        self._tx = tx
        self._qid = qid
        self._queue = queue
        self._taken = taken
        self._now = now
        self._count = 0
        self._bindings: dict[str, tuple[_Rows, _Rows]] = {kind: ([], []) for kind in _STATEMENTS}
        """Of the two statements of each kind."""
        self._expired: list[ExpiredRow] = []

    def lease(self, tid: int, tenant: str, run: Run) -> int:
        """Of jobs that follow each other, lease those that there is room for; return how many."""
        taken, now, tx = self._taken, self._now, self._tx
        want, jobs, bound, queue = taken.req.want, taken.jobs, taken.lost_bound, self._queue
        lane, task, _ = run.lane
        left = taken.bytes
        drawn = 0
        unsound: set[JobId] = set()
        for row in run.rows:
            (
                priority, run_at, job_id, _, epoch, attempt, lost, size, dies_at, _, key, enqueued_at, max_attempts,
                timeout, result_ttl, far, headers, error, parameters, vm_state, metadata, blob, group, _,
            ) = row  # fmt: skip
            if left <= 0:
                break
            if dies_at is not None and dies_at <= now:
                if len(self._expired) + len(taken.expired) >= EXPIRED_AT_ONCE:
                    taken.work(taken.visits)
                    break
                self._set_expired(lane, task, tenant, row)
                unsound.add(job_id)
                drawn += 1
                continue
            drawn += 1
            if lost >= bound:
                taken.passed.setdefault(job_id, (tid, run_at))
                taken.passed_in.add(self._qid)
                unsound.add(job_id)
                continue
            left_there = _NOTHING
            left -= size
            if far != 0 or want is not None or vm_state is not None or metadata is not None or blob is not None:
                stored = parameters, vm_state, metadata, blob
                headers, error, cells = _read(tx, far, headers, error, stored, want)
                left_there = _left(stored, want)
                left += spared(tx, stored, want)
            else:
                cells = {} if parameters is None else {"parameters": parameters}
            jobs.append(Leased(
                job_id, queue, task, cells, next_epoch(epoch, now), tenant, key, priority, run_at, enqueued_at, attempt,
                lost, max_attempts, timeout, result_ttl, headers, error, group, epoch > 0, left_there,
            ))  # fmt: skip
        taken.bytes = left
        sound = run.rows[:drawn]
        if unsound:
            sound = [row for row in sound if row[2] not in unsound]
        self._move(tid, run, sound, drawn)
        run.close(drawn)
        return len(sound)

    def _move(self, tid: int, run: Run, rows: Sequence[Any], drawn: int) -> None:
        """Of the jobs that were drawn, these become RUNNING."""
        lane, qid, now, req = run.lane.number, self._qid, self._now, self._taken.req
        until, holder = now + req.lease_for, req.holder
        self._count += len(rows)
        if 1 < len(rows) == drawn:
            first, last = rows[0], rows[-1]
            kind, bounds = ("head", last[:3]) if run.leads else ("run", (*first[:3], last[1], last[2]))
            leases, places = self._bindings[kind]
            leases.append((qid, until, holder, tid, now, lane, *bounds))
            places.append((lane, *bounds))
            return
        leases, places = self._bindings["job"]
        for priority, run_at, job_id, seq, epoch, attempt, lost, size, _, gid, *_ in rows:
            leases.append((
                seq, qid, next_epoch(epoch, now), attempt, lost, size, until, holder, gid, tid, epoch > 0,
            ))  # fmt: skip
            places.append((lane, priority, run_at, job_id))

    def _set_expired(self, lane: int, task: str, tenant: str, row: Any) -> None:
        priority, run_at, job_id, seq, epoch, attempt, lost, size, _, gid, key, *_ = row
        self._expired.append((
            lane, priority, run_at, job_id, seq, epoch, attempt, lost, size, gid, self._qid, self._queue, task,
            tenant, key,
        ))  # fmt: skip

    def write(self) -> None:
        """Write the leases."""
        tx = self._tx
        for kind, (leases, places) in self._bindings.items():
            if leases:
                lease, leave = _STATEMENTS[kind]
                tx.executemany(lease, leases)
                tx.executemany(leave, places)
        if self._count:
            tx.count(self._qid, AVAILABLE, -self._count)
            tx.count(self._qid, RUNNING, self._count)

    def expire(self) -> None:
        """Cancel the jobs that had expired."""
        self._taken.expired += expire(self._tx, self._expired, self._now)
