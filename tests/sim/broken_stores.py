"""Stores with one bug each, every one a classic that has bitten some queue in production."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from msgspec.structs import replace

from headrace.backends.memory.entry import Entry
from headrace.seam.records import (
    Beat,
    Cancel,
    Change,
    Claim,
    Claimed,
    Delete,
    Inserted,
    InsertStatus,
    JobId,
    JobKey,
    Leased,
    Move,
    Reap,
    Reaped,
    Record,
    Renewed,
    Requeue,
    Row,
    Settlement,
    Stamp,
    Stats,
    SweepClause,
    Swept,
)
from headrace.types import JobState
from tests.backends.hooked import HookedBackend

A, C, F = JobState.AVAILABLE, JobState.COMPLETED, JobState.FAILED
SECOND = 1_000_000


class FinishIgnoresEpoch(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        entry = self.store.running.get(s.id)
        return super()._finish(s if entry is None else replace(s, epoch=entry.epoch), now)


class FinishIgnoresHolder(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        entry = self.store.running.get(s.id)
        return super()._finish(s if entry is None else replace(s, holder=entry.holder), now)


class FinishRefusesExpiredLease(HookedBackend):
    """The holder of a lease that ran out, and that nobody took, is fenced off; the job stays running."""

    def _finish(self, s: Settlement, now: int) -> JobState | None:
        entry = self.store.running.get(s.id)
        return None if entry is not None and entry.lease_until <= now else super()._finish(s, now)


class RenewWithoutFence(HookedBackend):
    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        for job_id, _ in beat.leases:
            if (entry := self.store.running.get(job_id)) is not None:
                entry.lease_until = (at or 0) + beat.lease_for
        return replace(await super().renew(beat, at), lost=[])


class RenewRevivesLostLease(HookedBackend):
    """A lease that was taken back is handed to its old holder again."""

    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        for job_id, epoch in beat.leases:
            entry = self.store.jobs.get(job_id)
            if entry is not None and entry.state is A and entry.epoch == epoch:
                self.store.move(entry, JobState.RUNNING)
                entry.holder = beat.holder
        return await super().renew(beat, at)


class RenewNamesAnotherLease(HookedBackend):
    """What was lost is told with the epoch that the job has by now."""

    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        renewed = await super().renew(beat, at)
        jobs = self.store.jobs
        return replace(renewed, lost=[(i, jobs[i].epoch if i in jobs else 0) for i, _ in renewed.lost])


class ReapTakesLiveLeases(HookedBackend):
    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        return await super().reap(req, (at or 0) + 2 * SECOND)


class ReapForgetsToCount(HookedBackend):
    def _charged(self, entry: Entry) -> bool:
        return False


class ReapChargesAnAbsence(HookedBackend):
    def _charged(self, entry: Entry) -> bool:
        return True


class ReapLosesPoison(HookedBackend):
    """Moving a poisoned job to the dead letters is two steps, and the second never comes."""

    def _reap(self, entry: Entry, req: Reap, now: int, *, offset: int) -> Reaped:
        reaped = super()._reap(entry, req, now, offset=offset)
        if reaped.state is F:
            self.store.remove(entry)
        return reaped


class ReapMissesOldLeases(HookedBackend):
    """Looks only at leases that ran out lately."""

    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        hidden = {i: e for i, e in self.store.running.items() if e.lease_until <= (at or 0) - SECOND}
        for job_id in hidden:
            del self.store.running[job_id]
        try:
            return await super().reap(req, at)
        finally:
            self.store.running.update(hidden)


class ClaimGivesToTwo(HookedBackend):
    def _claim(self, req: Claim, now: int) -> Claimed:
        claimed = super()._claim(req, now)
        if len(claimed.jobs) < req.limit:
            others = [e for e in self.store.running.values() if e.holder != req.holder and e.queue in req.queues]
            for entry in others[:1]:
                claimed.jobs.append(self._lease(entry, req, now))
        return claimed


class ClaimIgnoresRunAt(HookedBackend):
    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        return super()._candidates(queues, now + SECOND)


class ClaimIgnoresPriority(HookedBackend):
    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        due = sorted((e.run_at, e.id) for e in self.store.jobs.values() if e.state is A and e.run_at <= now)
        for _, job_id in due:
            entry = self.store.jobs[job_id]
            if entry.queue in queues:
                yield entry


class ClaimIgnoresPause(HookedBackend):
    def _claim(self, req: Claim, now: int) -> Claimed:
        paused, self.store.paused_queues = self.store.paused_queues, {}
        try:
            return super()._claim(req, now)
        finally:
            self.store.paused_queues = paused


class ClaimGivesSuspectsToAnybody(HookedBackend):
    """A job that may be what kills its workers is claimed along with others, and takes them down with it."""

    def _claim(self, req: Claim, now: int) -> Claimed:
        return super()._claim(replace(req, lost_below=None), now)


class EverybodyMakesRoom(HookedBackend):
    """Who passes over a job on its last chance makes room for it, and so do all others."""

    def _claim(self, req: Claim, now: int) -> Claimed:
        claimed = super()._claim(req, now)
        return replace(claimed, chosen=claimed.passed_over)


class ClaimHidesSuspects(HookedBackend):
    """Nobody learns that a job was passed over, so nobody comes for it."""

    def _claim(self, req: Claim, now: int) -> Claimed:
        return replace(super()._claim(req, now), passed_over=False)


class ClaimKeepsEpoch(HookedBackend):
    """A job that was taken back is granted under its old epoch, which its old holder still has."""

    def _lease(self, entry: Entry, req: Claim, now: int) -> Leased:
        epoch = entry.epoch
        leased = super()._lease(entry, req, now)
        if not entry.lost:
            return leased
        entry.epoch = epoch
        return replace(leased, epoch=epoch)


class ClaimStartsExpired(HookedBackend):
    def _claim(self, req: Claim, now: int) -> Claimed:
        for entry in self.store.jobs.values():
            if entry.expires_at is not None and entry.state is A:
                entry.expires_at += 60 * SECOND
        return super()._claim(req, now)


class ClaimDropsOne(HookedBackend):
    """Takes a job off the queue and forgets to hand it over: pop, then crash."""

    def _claim(self, req: Claim, now: int) -> Claimed:
        claimed = super()._claim(req, now)
        return replace(claimed, jobs=claimed.jobs[:2])


class ClaimForgetsNextDue(HookedBackend):
    def _claim(self, req: Claim, now: int) -> Claimed:
        claimed = super()._claim(req, now)
        return replace(claimed, next_in=None)


class InsertNotIdempotent(HookedBackend):
    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        known = self.store.jobs.get(row.id)
        if known is not None:
            self.store.remove(known)
        return super()._insert(row, now, gate=gate)


class _KeyLeak(HookedBackend):
    state: JobState

    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        last = None if row.key is None else self.store.by_key(row.queue, row.key)
        if row.id not in self.store.jobs and last is not None and last.state is self.state:
            return Inserted(InsertStatus.DUPLICATE, last.id, last.state, None, last.attempt)
        return super()._insert(row, now, gate=gate)


class KeyLeaksAfterFail(_KeyLeak):
    state = F


class KeyLeaksAfterCancel(_KeyLeak):
    state = JobState.CANCELLED


class KeyLetsTwoIn(HookedBackend):
    """A running job does not keep its key."""

    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        last = None if row.key is None else self.store.by_key(row.queue, row.key)
        if last is not None and last.state is JobState.RUNNING:
            self.store.drop_key(last)
        return super()._insert(row, now, gate=gate)


class DuplicateOverwritesPayload(HookedBackend):
    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        answer = super()._insert(row, now, gate=gate)
        if answer.status is InsertStatus.DUPLICATE:
            self.store.jobs[answer.id].cells = dict(row.cells)
        return answer


class CancelFlipsRunning(HookedBackend):
    def _apply(self, entry: Entry, change: Change, now: int) -> bool:
        if isinstance(change, Cancel) and entry.state is JobState.RUNNING:
            self.store.end(entry, JobState.CANCELLED, change.reason)
            return True
        return super()._apply(entry, change, now)


class CancelRequestLost(HookedBackend):
    def _apply(self, entry: Entry, change: Change, now: int) -> bool:
        if isinstance(change, Cancel) and entry.state is JobState.RUNNING:
            return True
        return super()._apply(entry, change, now)


class CancelledJobRetried(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        entry = self._held_by(s.id, s.epoch, s.holder)
        if entry is not None:
            entry.cancel_requested = False
        return super()._finish(s, now)


class StaleWorkerOverwritesResult(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        entry = self.store.jobs.get(s.id)
        if entry is not None and entry.state is C and s.state is C:
            entry.result = s.result
            return C
        return super()._finish(s, now)


class SweepTakesTheLiving(HookedBackend):
    """Deletes by age alone."""

    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        swept = await super().sweep(clause, at)
        if clause.older_than is not None and not clause.dry_run:
            for entry in list(self.store.jobs.values()):
                if entry.state is JobState.PAUSED and entry.enqueued_at < (at or 0) - SECOND:
                    self.store.remove(entry)
        return swept


class SweepFreesKeys(HookedBackend):
    """A key dies with the record of its job."""

    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        swept = await super().sweep(clause, at)
        self.store.outlived.clear()
        return swept


class SweepByAnotherClock(HookedBackend):
    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        return await super().sweep(clause, (at or 0) + 5 * SECOND)


class DryRunIsWet(HookedBackend):
    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        return await super().sweep(replace(clause, dry_run=False), at)


class SpawnsThoughFenced(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        state = super()._finish(s, now)
        if state is None:
            for row in s.spawn:
                self._insert(row, now)
        return state


class SpawnsNothing(HookedBackend):
    def _finish_all(self, batch: Sequence[Settlement], now: int) -> list[JobState | None]:
        return super()._finish_all([replace(s, spawn=()) for s in batch], now)


class CountersDrift(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        state = super()._finish(s, now)
        if state is F:
            self.store.counts[self.store.jobs[s.id].queue, A] += 1
        return state


class ResultOutlivesTtl(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        return super()._finish(replace(s, result_ttl=s.result_ttl * 3), now)


class ResultMixedUp(HookedBackend):
    """A driver off by one: the next caller gets the last caller's answer."""

    _last: bytes | None = None

    async def fetch(
        self, names: Sequence[JobId | JobKey], want: frozenset[str] = frozenset(), at: Stamp = None
    ) -> list[Record | None]:
        found = await super().fetch(names, want, at)
        [first, *rest] = found or [None]
        if first is not None and first.result is not None:
            mixed, self._last = self._last, first.result
            return [replace(first, result=mixed or first.result), *rest]
        return found


class RetryLosesSections(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        state = super()._finish(s, now)
        if state is A and s.failed_attempt:
            self.store.jobs[s.id].cells.pop("blob", None)
        return state


class RetryForgetsAttempt(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        return super()._finish(replace(s, failed_attempt=False), now)


class RequeueKeepsCounters(HookedBackend):
    """A replayed job is poisoned again by its old count."""

    def _apply(self, entry: Entry, change: Change, now: int) -> bool:
        attempt, lost = entry.attempt, entry.lost
        done = super()._apply(entry, change, now)
        if done and isinstance(change, Requeue):
            entry.attempt, entry.lost = attempt, lost
        return done


class RequeueStealsKey(HookedBackend):
    """Two live jobs under one key."""

    def _requeue(self, entry: Entry, now: int) -> bool:
        if entry.key is not None:
            holder = self.store.by_key(entry.queue, entry.key)
            if holder is not None and holder is not entry:
                self.store.drop_key(holder)
        return super()._requeue(entry, now)


class DeleteTakesRunning(HookedBackend):
    def _alter(self, entry: Entry, change: Change, now: int):  # type: ignore[no-untyped-def]
        if isinstance(change, Delete) and entry.state is JobState.RUNNING:
            before = entry.state
            self.store.remove(entry)
            return type(super()._alter(entry, Requeue(), now))(entry.id, before, None)
        return super()._alter(entry, change, now)


class MoveLeavesKeyBehind(HookedBackend):
    def _apply(self, entry: Entry, change: Change, now: int) -> bool:
        key = (entry.queue, entry.key) if entry.key is not None else None
        done = super()._apply(entry, change, now)
        if done and isinstance(change, Move) and key is not None:
            self.store.keys[key] = entry.id
        return done


class BulkStopsAtDuplicate(HookedBackend):
    """Rows after a duplicate are answered as new and never stored."""

    async def insert(self, rows: Sequence[Row], at: Stamp = None) -> list[Inserted]:
        answers: list[Inserted] = []
        stopped = False
        for row in rows:
            if stopped:
                answers.append(Inserted(InsertStatus.NEW, row.id))
            else:
                answers += await super().insert([row], at)
                stopped = answers[-1].status is InsertStatus.DUPLICATE
        return answers


class StatsCountDeadAsWaiting(HookedBackend):
    async def stats(self, at: Stamp = None, *, queues: Sequence[str] | None = None) -> Stats:
        stats = await super().stats(at, queues=queues)
        return replace(stats, queues=[replace(q, available=q.available + q.failed) for q in stats.queues])
