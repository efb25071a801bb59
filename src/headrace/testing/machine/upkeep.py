"""The rules of the upkeep: reap and sweep."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from headrace.seam.records import (
    Beat,
    Cancel,
    Claim,
    JobId,
    Reap,
    Record,
    Selector,
    Settlement,
    SweepClause,
    SweepTarget,
    Swept,
)
from headrace.testing.machine import draws, laws, pools
from headrace.testing.machine.twins import check_equal
from headrace.testing.machine.working import WorkingRules
from headrace.types import JobState

_NO_LIMIT = 1_000
_ANY_RUNNING = Selector(states=frozenset({JobState.RUNNING}), limit=1)
_BOUNDS = ("older_than", "max_count", "max_bytes")


class UpkeepRules(WorkingRules):
    """Holders vanish and their jobs are taken back; what has ended is cleared away."""

    # -- reap

    @rule(req=draws.reaps(), after=draws.pauses)
    def reap(self, req: Reap, after: int) -> None:
        self.begin_rule("reap", after)
        self._reap(req)

    @rule(
        first=draws.claims(), second=draws.claims(), req=draws.reaps(), late=draws.flags, cancel=draws.seldom,
        fleet=draws.flags,
    )  # fmt: skip
    def vanish(self, first: Claim, second: Claim, req: Reap, late: bool, cancel: bool, fleet: bool) -> None:
        self.begin_rule("vanish")
        for claim, holder in zip((first, second), pools.HOLDERS, strict=False):
            if fleet:
                self._show(holder)
            self.take(claim)
            self.look()
        if cancel:
            self.twins.ask(lambda backend: backend.alter(_ANY_RUNNING, Cancel(), self.now))
            self.look()
        ends = [record.lease_until or 0 for record in self.world.in_state(JobState.RUNNING)]
        self.world.now = max(self.now, max(ends, default=0) if late else min(ends, default=0))
        self.look()
        if fleet:
            self._show(pools.HOLDERS[-1])
        self._reap(req)

    def _show(self, holder: str) -> None:
        """A worker is listed, for a moment, in a fleet that need not have been at work for long."""
        self.beat(Beat(holder, "pod", pools.QUEUES, self.world.tick, ttl=self.world.tick, at_work=0))

    def _reap(self, req: Reap) -> None:
        over = [record for record in self.world.in_state(JobState.RUNNING) if (record.lease_until or 0) <= self.now]
        if any(laws.expired(record, self.now) for record in over):
            self.note("reap: taken back after its expiry")
        req = replace(req, limit=self._fair_limit(req.limit), spread=self._fair_spread(req.spread, over))
        reaped = self.twins.ask(
            lambda backend: backend.reap(req, self.now), lambda answers: {answer.id: answer for answer in answers}
        )
        laws.check_reap(self.world, reaped)
        released = [answer for answer in reaped if answer.state is JobState.AVAILABLE]
        if req.spread and released:
            taken = sum(answer.reason != "expired" for answer in reaped)
            self._adopt_spread([answer.id for answer in released], req.spread, taken)
        self.note(
            *(f"reap: {answer.reason or answer.state}" for answer in reaped),
            *("reap: nobody was there" for answer in released if answer.lost == self.world.books[answer.id].lost),
            *("reap: bounded" for _ in range(len(reaped) == req.limit)),
        )

    def _fair_limit(self, limit: int) -> int:
        """A limit that leaves no choice: it cuts neither leases of one expiry nor jobs that have expired."""
        if any(laws.expired(record, self.now) for record in laws.due(self.world)):
            return _NO_LIMIT
        ends = sorted(record.lease_until or 0 for record in self.world.in_state(JobState.RUNNING))
        while limit < len(ends) and ends[limit] == ends[limit - 1]:
            limit += 1
        return limit

    def _fair_spread(self, spread: int, over: list[Record]) -> int:
        """Where in the spread a job lies decides about turns."""
        return 0 if any(map(self.world.bound, over)) else spread

    def _adopt_spread(self, released: list[JobId], spread: int, taken: int) -> None:
        """Where in the spread each job lies is up to the store; that they are spread is not. Jobs that were taken back
        but ended may have had a share of it too."""
        records = self.twins.run(self.store.fetch(released, frozenset(), self.now))
        offsets = [record.run_at - self.now for record in records if record is not None]
        assert len(offsets) == len(released)
        assert all(0 <= offset <= spread for offset in offsets), f"{offsets} do not lie within {spread}"
        windows = Counter(offset * taken // (spread + 1) for offset in offsets)
        assert max(windows.values()) <= 2, f"{offsets} are not spread evenly over {spread}"
        for job_id, offset in zip(released, offsets, strict=True):
            self.twins.put_off(job_id, self.now + offset)
        self.note("reap: spread")

    # -- sweep

    @precondition(lambda self: any(record.state.terminal for record in self.world.books.values()))
    @rule(clause=draws.clauses(), after=draws.pauses)
    def sweep(self, clause: SweepClause, after: int) -> None:
        self.begin_rule("sweep", after)
        self._sweep(clause)

    @rule(req=draws.claims(), outcomes=st.lists(draws.outcomes(), min_size=3, max_size=4), clause=draws.clauses())
    def work_and_sweep(self, req: Claim, outcomes: list[Settlement], clause: SweepClause) -> None:
        self.begin_rule("work_and_sweep")
        self.take_and_settle(req, outcomes)
        self.look()
        self.wait((clause.older_than or 0) // self.world.tick)
        self._sweep(clause)

    def _sweep(self, clause: SweepClause) -> None:
        if clause.target in (SweepTarget.RESULTS, SweepTarget.KEYS):
            self._sweep_alike(clause)
        else:
            self._sweep_place(self._fair_clause(clause))

    def _sweep_alike(self, clause: SweepClause) -> None:
        swept = self.twins.ask(lambda backend: backend.sweep(clause, self.now), _told)
        if swept.removed:
            self.note(f"sweep: {clause.target}, in a dry run" if clause.dry_run else f"sweep: {clause.target}")

    def _fair_clause(self, clause: SweepClause) -> SweepClause:
        """Two bounds at once leave no choice only where no two jobs ended at the same instant."""
        ends = [record.finished_at for record in self.world.in_state(JobState(clause.target.value))]
        return clause if len(set(ends)) == len(ends) or clause.max_count is None else replace(clause, older_than=None)

    def _sweep_place(self, clause: SweepClause) -> None:
        preview = self._preview(clause)
        if clause.dry_run:
            self.note("sweep: dry run")
            return
        swept = self.twins.run(self.store.sweep(clause, self.now))
        assert swept == preview, f"the sweep answered {swept!r}, and its dry run {preview!r}"
        gone = self._gone()
        assert len(gone) == swept.removed <= clause.limit
        self._check_gone(clause, gone)
        if clause.max_bytes is not None and not swept.more:
            assert self._bytes_in(clause.target) <= clause.max_bytes, "a hard bound that does not hold"
        # Which of several jobs that ended together goes first is up to the store: the model follows.
        for job_id in gone:
            self.twins.sweep_away(job_id, self.now)
        if gone:
            self.note(f"sweep: by {' and '.join(name for name in _BOUNDS if getattr(clause, name) is not None)}")
        if swept.more:
            self.note("sweep: more")

    def _preview(self, clause: SweepClause) -> Swept:
        """What the store says that it would remove; only the store knows how many bytes that takes."""
        dry = replace(clause, dry_run=True)
        preview = self.twins.run(self.store.sweep(dry, self.now))
        if clause.max_bytes:
            size = self._bytes_in(clause.target)
            assert (preview.removed > 0) == (size > clause.max_bytes), f"{preview!r} of {size} bytes"
        else:
            expected = self.twins.run(self.twins.model.sweep(dry, self.now))
            check_equal(_told(preview), _told(expected))
        return preview

    def _gone(self) -> list[JobId]:
        ids = list(self.world.books)
        found = self.twins.run(self.store.fetch(ids, frozenset(), self.now))
        return [job_id for job_id, record in zip(ids, found, strict=True) if record is None]

    def _bytes_in(self, place: SweepTarget) -> int:
        stats = self.twins.run(self.store.stats(self.now))
        return next(found.bytes for found in stats.kept if found.target == place.value)

    def _check_gone(self, clause: SweepClause, gone: list[JobId]) -> None:
        """What stays ended no earlier than what went, but for held results, which age does not condemn; of dead
        letters, no earlier than what went of the same tenant."""
        books = self.world.books
        assert all(books[job_id].state == clause.target.value for job_id in gone), "a sweep of another place"
        lasts: dict[str, int] = {}
        for one in (books[job_id] for job_id in gone):
            whose = one.tenant if clause.target is SweepTarget.FAILED else ""
            lasts[whose] = max(lasts.get(whose, 0), one.finished_at or 0)
        for record in self.world.in_state(JobState(clause.target.value)):
            if record.id in gone:
                continue
            spared = clause.older_than is not None and record.held
            last = lasts.get(record.tenant if clause.target is SweepTarget.FAILED else "", 0)
            assert spared or (record.finished_at or 0) >= last, "a younger job went before an older one"
            if spared and (record.finished_at or 0) <= self.now - (clause.older_than or 0):
                self.note("sweep: a held result stays")


def _told(swept: Swept) -> tuple[int, int, bool]:
    return swept.removed, swept.kept, swept.more
