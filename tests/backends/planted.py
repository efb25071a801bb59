"""Faulty stores: the memory backend with one planted fault each, to show that the test instruments have teeth."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from unittest.mock import patch

from msgspec.structs import replace

from headrace.backends.memory.entry import Entry
from headrace.seam.records import (
    Altered,
    Beat,
    Change,
    Claim,
    Claimed,
    Hold,
    Inserted,
    InsertStatus,
    JobId,
    JobKey,
    Move,
    Page,
    Reap,
    Reaped,
    Record,
    Renewed,
    Row,
    Selector,
    Settlement,
    Stamp,
    SweepClause,
    SweepTarget,
    Swept,
)
from headrace.types import JobState
from tests.backends.hooked import HookedBackend


class AnyEpochFits(HookedBackend):
    def _held_by(self, job_id: JobId, epoch: int, holder: str) -> Entry | None:
        entry = self.store.running.get(job_id)
        return entry if entry is not None and entry.holder == holder else None


class AnyHolderFits(HookedBackend):
    def _held_by(self, job_id: JobId, epoch: int, holder: str) -> Entry | None:
        entry = self.store.running.get(job_id)
        return entry if entry is not None and entry.epoch == epoch else None


class FencedOffButSpawns(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        state = super()._finish(s, now)
        for row in s.spawn if state is None else ():
            self._insert(row, now)
        return state


class StartsATickEarly(HookedBackend):
    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        return super()._candidates(queues, now + 1)


class ForgetsRunAtInTheOrder(HookedBackend):
    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        yield from sorted(super()._candidates(queues, now), key=lambda entry: (entry.priority, entry.id))

    def _claim(self, req: Claim, now: int) -> Claimed:
        claimed = super()._claim(req, now)
        for entry in self.store.jobs.values():
            if entry.state is JobState.AVAILABLE:
                self.store.put_back(entry)
        return claimed


class ServesPausedQueues(HookedBackend):
    def _claim(self, req: Claim, now: int) -> Claimed:
        with patch.object(self.store, "paused_queues", {}):
            return super()._claim(req, now)


class StartsExpiredJobs(HookedBackend):
    def _candidates(self, queues: Sequence[str], now: int) -> Generator[Entry, None, None]:
        for entry in super()._candidates(queues, now):
            entry.expires_at = None
            yield entry


class ClaimsSuspectsLikeAnyOther(HookedBackend):
    def _claim(self, req: Claim, now: int) -> Claimed:
        return super()._claim(replace(req, lost_below=None), now)


class HidesWhatItPassedOver(HookedBackend):
    def _claim(self, req: Claim, now: int) -> Claimed:
        return replace(super()._claim(req, now), passed_over=False)


class BringsEverySection(HookedBackend):
    def _lease(self, entry: Entry, req: Claim, now: int) -> object:
        return super()._lease(entry, replace(req, want=None), now)


class FoldsTheCaseOfKeys(HookedBackend):
    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        for (queue, key), job_id in self.store.keys.items():
            if row.key is not None and (queue, key.casefold()) == (row.queue, row.key.casefold()):
                return super()._insert(replace(row, key=self.store.jobs[job_id].key), now, gate=gate)
        return super()._insert(row, now, gate=gate)


class FailedJobsKeepTheirKey(HookedBackend):
    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        return super()._insert(replace(row, hold_failed=True), now, gate=gate)


class CompletedJobsLoseTheirKey(HookedBackend):
    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        last = None if row.key is None else self.store.by_key(row.queue, row.key)
        if last is not None and last.state is JobState.COMPLETED:
            self.store.drop_key(last)
        return super()._insert(row, now, gate=gate)


class RepeatedInsertsOverwrite(HookedBackend):
    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        answer = super()._insert(row, now, gate=gate)
        if answer.status is InsertStatus.SAME:
            self.store.jobs[row.id].cells = dict(row.cells)
        return answer


class EmptyCellsAreDropped(HookedBackend):
    def _insert(self, row: Row, now: int, *, gate: bool = False) -> Inserted:
        return super()._insert(
            replace(row, cells={name: cell for name, cell in row.cells.items() if cell}), now, gate=gate
        )


class BlindWithinABatch(HookedBackend):
    async def insert(self, rows: Sequence[Row], at: Stamp = None) -> list[Inserted]:
        before, added, answers = dict(self.store.keys), {}, []
        for row in rows:
            self.store.keys = dict(before)
            answers += await super().insert([row], at)
            added |= {name: job_id for name, job_id in self.store.keys.items() if before.get(name) != job_id}
        self.store.keys = before | added
        return answers


class NeverForgetsALoss(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        return super()._finish(replace(s, keep_lost=True), now)


class ForgetsCancelRequests(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        entry = self._held_by(s.id, s.epoch, s.holder)
        if entry is not None:
            entry.cancel_requested = False
        return super()._finish(s, now)


class AlwaysGoesToTheBack(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        return super()._finish(replace(s, delay=s.delay or 0), now)


class ForgetsTheError(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        return super()._finish(replace(s, error=s.error or b""), now)


class CountsWhatIsGone(HookedBackend):
    def _finish(self, s: Settlement, now: int) -> JobState | None:
        state = super()._finish(s, now)
        if state is JobState.COMPLETED and not s.keep:
            self.store.counts[s.queue or "q", state] += 1
        return state


class LateRenewalsAreLost(HookedBackend):
    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        held = [lease for lease in beat.leases if self._held_by(*lease, beat.holder) is not None]
        late = [lease for lease in held if self.store.running[lease[0]].lease_until <= (at or 0)]
        kept = [lease for lease in beat.leases if lease not in late]
        renewed = await super().renew(replace(beat, leases=kept), at)
        return replace(renewed, lost=[*renewed.lost, *late])


class NamesTheWrongLease(HookedBackend):
    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        renewed = await super().renew(beat, at)
        return replace(renewed, lost=[(job_id, epoch + 1) for job_id, epoch in renewed.lost])


class TellsCancelRequestsOnce(HookedBackend):
    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        renewed = await super().renew(beat, at)
        for job_id in renewed.cancels:
            self.store.jobs[job_id].cancel_requested = False
        return renewed


class OneLossTooMany(HookedBackend):
    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        return await super().reap(replace(req, max_lost=req.max_lost + 1), at)


class TakesAnAbsenceForPoison(HookedBackend):
    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        return await super().renew(replace(beat, at_work=10**15), at)


class TakesARestartForAnAbsence(HookedBackend):
    async def renew(self, beat: Beat, at: Stamp = None) -> Renewed:
        return await super().renew(replace(beat, at_work=0), at)


class ReapsYoungestFirst(HookedBackend):
    async def reap(self, req: Reap, at: Stamp = None) -> list[Reaped]:
        return list(reversed(await super().reap(req, at)))


class NoIdsMeansAllIds(HookedBackend):
    async def alter(self, sel: Selector, change: Change, at: Stamp = None) -> list[Altered]:
        return await super().alter(replace(sel, ids=sel.ids or None), change, at)


class StartsOverInsteadOfGoingOn(HookedBackend):
    async def alter(self, sel: Selector, change: Change, at: Stamp = None) -> list[Altered]:
        return await super().alter(replace(sel, above=None), change, at)


class RequeueKeepsTheAttempts(HookedBackend):
    def _requeue(self, entry: Entry, now: int) -> bool:
        attempt = entry.attempt
        done = super()._requeue(entry, now)
        if done:
            entry.attempt = attempt
        return done


class RequeueStealsTheKey(HookedBackend):
    def _requeue(self, entry: Entry, now: int) -> bool:
        with patch.object(self.store, "key_owner", return_value=None):
            return super()._requeue(entry, now)


class MoveDropsTheKey(HookedBackend):
    def _apply(self, entry: Entry, change: Change, now: int) -> bool:
        if isinstance(change, Move) and entry.queue != change.queue:
            self._change_queue(entry, change.queue, now)
            self.store.move(entry, entry.state)
            return True
        return super()._apply(entry, change, now)


class HoldsWhatIsGone(HookedBackend):
    def _apply(self, entry: Entry, change: Change, now: int) -> bool:
        if isinstance(change, Hold):
            self.store.hold(entry, now + change.result_ttl)
            return True
        return super()._apply(entry, change, now)


class ResultsOutliveTheirTtl(HookedBackend):
    async def fetch(
        self, names: Sequence[JobId | JobKey], want: frozenset[str] = frozenset(), at: Stamp = None
    ) -> list[Record | None]:
        return await super().fetch(names, want, None if at is None else at - 1)


class PagesLoseAJob(HookedBackend):
    async def scan(self, sel: Selector, after: str | None = None, limit: int = 100, at: Stamp = None) -> Page:
        page = await super().scan(sel, after, limit, at)
        return Page(page.records[:-1], page.after) if page.after and len(page.records) > 1 else page


class DryRunsRemove(HookedBackend):
    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        return await super().sweep(replace(clause, dry_run=False), at)


class AgeTakesHeldResults(HookedBackend):
    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        if clause.older_than is not None and clause.target is SweepTarget.COMPLETED:
            for entry in self.store.ended[JobState.COMPLETED].values():
                if entry.finished_at is not None and entry.finished_at <= (at or 0) - clause.older_than:
                    entry.held_until = 0
        return await super().sweep(clause, at)


class SweepsYoungestFirst(HookedBackend):
    async def sweep(self, clause: SweepClause, at: Stamp = None) -> Swept:
        for state, place in self.store.ended.items():
            self.store.ended[state] = dict(reversed(place.items()))
        swept = await super().sweep(clause, at)
        for state, place in self.store.ended.items():
            self.store.ended[state] = dict(reversed(place.items()))
        return swept


SEEN_BY_SUITE = (StartsOverInsteadOfGoingOn,)
"""What the conformance suite has to find whatever the machine draws."""
FAULTY = tuple(faulty for faulty in HookedBackend.__subclasses__() if faulty.__module__ == __name__)
