"""Jobs of a governed queue become RUNNING, written all together when the claim is done with the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.sqlite.entry import read_cells
from headrace.backends.sqlite.statements import load
from headrace.backends.sqlite.states import AVAILABLE, RUNNING
from headrace.backends.sqlite.taken import EXPIRED_AT_ONCE, SqliteTaken
from headrace.backends.sqlite.tenant_jobs import Run
from headrace.backends.sqlite.transaction import Damaged, Transaction
from headrace.backends.sqlite.transitions import Dying, expire, next_epoch
from headrace.seam.records import JobId, Leased

_SQL = load("turn")
_TRANSITION = load("transition")

_Rows = list[tuple[Any, ...]]


class LeaseWriter:
    """What one claim leases from one governed queue."""

    def __init__(self, tx: Transaction, qid: int, queue: str, taken: SqliteTaken, now: int) -> None:
        self._tx = tx
        self._qid = qid
        self._queue = queue
        self._taken = taken
        self._now = now
        self._count = 0
        self._heads: tuple[_Rows, _Rows] = ([], [])
        """Runs at the head of a priority: what ``lease_head`` and ``leave_head`` are bound to …"""
        self._runs: tuple[_Rows, _Rows] = ([], [])
        """… other runs …"""
        self._jobs: tuple[_Rows, _Rows] = ([], [])
        """… and single jobs."""
        self._dying: list[Dying] = []

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
            drawn += 1
            if dies_at is not None and dies_at <= now:
                self._condemn(lane, task, tenant, row)
                unsound.add(job_id)
                continue
            if lost >= bound:
                taken.passed.setdefault(job_id, (tid, run_at))
                taken.passed_in.add(self._qid)
                unsound.add(job_id)
                continue
            if far or want is not None or vm_state is not None or metadata is not None or blob is not None:
                cells = read_cells(tx, (parameters, vm_state, metadata, blob), want)
                if far:
                    headers, error = tx.read(headers), tx.read(error)
            else:
                cells = {} if parameters is None else {"parameters": parameters}
            if far is None:  # there is no such job
                raise Damaged
            jobs.append(Leased(
                job_id, queue, task, cells, next_epoch(epoch, now), tenant, key, priority, run_at, enqueued_at, attempt,
                lost, max_attempts, timeout, result_ttl, headers, error, group, epoch > 0,
            ))  # fmt: skip
            left -= size
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
            if run.leads:
                (leases, places), bounds = self._heads, (lane, *last[:3])
            else:
                (leases, places), bounds = self._runs, (lane, *first[:3], last[1], last[2])
            leases.append((*bounds, qid, until, holder, tid, now))
            places.append(bounds)
            return
        leases, places = self._jobs
        for priority, run_at, job_id, seq, epoch, attempt, lost, size, _, gid, *_ in rows:
            leases.append((
                seq, qid, next_epoch(epoch, now), attempt, lost, size, until, holder, gid, tid, epoch > 0,
            ))  # fmt: skip
            places.append((lane, priority, run_at, job_id))

    def _condemn(self, lane: int, task: str, tenant: str, row: Any) -> None:
        if len(self._dying) + len(self._taken.expired) < EXPIRED_AT_ONCE:
            priority, run_at, job_id, seq, epoch, attempt, lost, size, _, gid, key, *_ = row
            self._dying.append(Dying(
                lane, priority, run_at, job_id, seq, epoch, attempt, lost, size, gid, self._qid, self._queue, task,
                tenant, key,
            ))  # fmt: skip

    def write(self) -> None:
        """Write the leases."""
        tx = self._tx
        for (leases, places), lease, leave in (
            (self._heads, _SQL["lease_head"], _SQL["leave_head"]),
            (self._runs, _SQL["lease_run"], _SQL["leave_run"]),
            (self._jobs, _SQL["lease"], _TRANSITION["from_ready"]),
        ):
            if leases:
                tx.executemany(lease, leases)
                tx.executemany(leave, places)
        if self._count:
            tx.count(self._qid, AVAILABLE, -self._count)
            tx.count(self._qid, RUNNING, self._count)

    def expire(self) -> None:
        """Cancel the jobs that had expired."""
        self._taken.expired += expire(self._tx, self._dying, self._now)
