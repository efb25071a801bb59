"""The rules of producers and workers: insert, claim, finish, finish_and_claim, renew."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import replace

from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Cancel, Claim, Claimed, Inserted, InsertStatus, JobId, Row, Selector, Settlement
from headrace.testing.machine import draws, laws
from headrace.testing.machine.base import EVERYTHING, MachineBase
from headrace.testing.machine.twins import tidy_claimed, tidy_renewed
from headrace.testing.machine.world import Fence
from headrace.types import JobState


class WorkingRules(MachineBase):
    """Rows go in, leases are taken, kept and ended."""

    # -- insert

    @initialize(rows=st.lists(draws.rows(), min_size=6, max_size=12))
    def begin(self, rows: list[Row]) -> None:
        self._insert(rows)

    @rule(rows=st.lists(draws.rows(), min_size=1, max_size=5), repeat=draws.seldom, after=draws.pauses)
    def insert(self, rows: list[Row], repeat: bool, after: int) -> None:
        self.begin_rule("insert", after)
        self._insert(rows)
        if repeat:
            self._insert(rows)

    @rule(rows=st.lists(draws.keyed_rows(), min_size=1, max_size=4), after=draws.pauses)
    def insert_with_keys(self, rows: list[Row], after: int) -> None:
        self.begin_rule("insert_with_keys", after)
        self._insert(rows)

    def _insert(self, rows: list[Row]) -> None:
        answers = self.twins.ask(lambda backend: backend.insert(rows, self.now))
        assert len(answers) == len(rows)
        self.world.know(rows)
        for answer in answers:
            self._note_inserted(answer)

    def _note_inserted(self, answer: Inserted) -> None:
        self.note(f"insert: {answer.status}")
        if (
            answer.status in (InsertStatus.SAME, InsertStatus.DUPLICATE, InsertStatus.REPLACED)
            and answer.id not in self.world.books
        ):
            self.note(f"insert: {answer.status} within the batch")
        if answer.status in (InsertStatus.DUPLICATE, InsertStatus.REPLACED):
            self.note(f"insert: {answer.status} of a job that is {answer.state}")
        if answer.status is InsertStatus.DONE and answer.result is not None:
            self.note("insert: done with a result")

    # -- claim

    @rule(req=draws.claims(), after=draws.pauses)
    def claim(self, req: Claim, after: int) -> None:
        self.begin_rule("claim", after)
        self.take(req)

    def take(self, req: Claim) -> Claimed:
        """Claim."""
        self._clear_expired()
        req = self._sharing(req)
        claimed = self.twins.ask_for_jobs(
            lambda backend: backend.claim(req, self.now), lambda claimed: claimed, tidy_claimed(req, strict=self.strict)
        )
        taken = [job.id for job in claimed.jobs]
        if self.strict:
            expired = [job.id for job in claimed.expired]
            laws.check_claim(self.world, req, taken, expired, passed_over=claimed.passed_over)
        else:
            laws.check_claim_by_bands(self.world, req, taken)
        self._note_claimed(req, claimed)
        return claimed

    def _sharing(self, req: Claim) -> Claim:
        """Without a strict order, it is up to the store how queues with and without rules share a claim."""
        governed = tuple(queue for queue in req.queues if queue in self.world.governed)
        return req if self.strict or not governed else replace(req, queues=governed)

    def _clear_expired(self) -> None:
        """It is up to the store whether a claim meets an expired job that is not called, or whose tenant it does not
        visit, and what then becomes of the next one in the group. They go one by one, as it is also up to the store
        whether jobs that one change ends call each other for a moment, and so wake their tenants."""
        expired = [record for record in laws.due(self.world) if laws.expired(record, self.now)]
        ids = [record.id for record in expired if self.world.bound(record) or not self.strict]
        for job_id in ids:
            one = Selector(ids=[job_id])
            self.twins.ask(lambda backend, one=one: backend.alter(one, Cancel("expired"), self.now))  # type: ignore[misc]
        if ids:
            self.look()

    def _note_claimed(self, req: Claim, claimed: Claimed) -> None:
        jobs = claimed.jobs
        self.world.fences.update((Fence(job.id, job.epoch, req.holder), None) for job in jobs)
        self.note(
            *(f"claim: epoch {min(job.epoch, 3)}" for job in jobs),
            *("claim: after a loss" for job in jobs if job.lost),
            *("claim: after a failed attempt" for job in jobs if job.attempt),
            *("claim: expired" for _ in claimed.expired),
            *("claim: passed over" for _ in range(claimed.passed_over)),
        )
        if req.limit:
            self.note(f"claim: {'nothing' if not jobs else 'full' if len(jobs) == req.limit else 'short'}")
        if len(jobs) < req.limit and claimed.next_in is not None:
            self.note("claim: told when the next is due")
        if len({job.queue for job in jobs}) > 1:
            self.note("claim: from several queues")
        governed = [job for job in jobs if job.queue in self.world.governed]
        if 0 < len(governed) < len(jobs):
            self.note("claim: from queues with and without rules")
        if len({job.tenant for job in governed}) > 1:
            self.note("claim: tenants take turns")
        self.note(*("claim: a group's turn" for job in jobs if job.group is not None))

    # -- finish

    @rule(req=draws.claims(), outcomes=st.lists(draws.outcomes(), min_size=1, max_size=4), after=draws.pauses)
    def work(self, req: Claim, outcomes: list[Settlement], after: int) -> None:
        self.begin_rule("work", after)
        self.take_and_settle(req, outcomes)

    @precondition(lambda self: self.world.live_fences())
    @rule(batch=st.lists(draws.settlements(), min_size=1, max_size=3), repeat=draws.seldom, after=draws.pauses)
    def finish(self, batch: list[Settlement], repeat: bool, after: int) -> None:
        self.begin_rule("finish", after)
        if not any(self.settle(batch)):
            self._check_nothing_changed()
        if repeat:
            assert not any(self.settle(batch)), "a settlement counted twice"

    def take_and_settle(self, req: Claim, outcomes: list[Settlement]) -> None:
        """Claim, and end as many leases as there are outcomes."""
        ended = zip(self.take(req).jobs, outcomes, strict=False)
        self.settle([replace(outcome, id=job.id, epoch=job.epoch, holder=req.holder) for job, outcome in ended])

    def settle(self, batch: list[Settlement]) -> list[JobState | None]:
        """Finish."""
        answers = self.twins.ask(lambda backend: backend.finish(batch, self.now))
        self._note_finished(batch, answers)
        return answers

    def _note_finished(self, batch: Sequence[Settlement], answers: Sequence[JobState | None]) -> None:
        for settlement, state in zip(batch, answers, strict=True):
            self.world.know(settlement.spawn)
            if state is None:
                self.note("finish: fenced off")
                continue
            self.note(f"finish: {state}")
            if state is not settlement.state:
                self.note("finish: a cancel request won")
            if settlement.spawn:
                self.note("finish: spawned")
            if settlement.queue is not None:
                self.note("finish: moved")
            if state is JobState.COMPLETED:
                held = "held" if settlement.result_ttl else "not held"
                self.note(f"finish: {held if settlement.keep else 'nothing kept'}")
                self.world.instants.add(self.now + settlement.result_ttl)

    def _check_nothing_changed(self) -> None:
        books = self.world.books
        records = self.twins.run(self.store.fetch(list(books), EVERYTHING, self.now))
        assert records == list(books.values()), "a settlement that was fenced off changed something"

    # -- finish and claim

    @precondition(lambda self: self.store.finish_and_claim is not None)
    @rule(batch=st.lists(draws.settlements(), max_size=2), req=draws.claims(), after=draws.pauses)
    def finish_and_claim(self, batch: list[Settlement], req: Claim, after: int) -> None:
        self.begin_rule("finish_and_claim", after)
        self._clear_expired()
        if self._may_expire(batch):
            return
        req = self._sharing(req)
        tidy = tidy_claimed(req, strict=self.strict)

        async def both(backend: Backend) -> tuple[list[JobState | None], Claimed]:
            assert backend.finish_and_claim is not None
            return await backend.finish_and_claim(batch, req, self.now)

        states, claimed = self.twins.ask_for_jobs(
            both, lambda answer: answer[1], lambda answer: (answer[0], tidy(answer[1]))
        )
        self._note_finished(batch, states)
        self._note_claimed(req, claimed)

    def _may_expire(self, batch: Sequence[Settlement]) -> bool:
        """Whether the claim may meet an expired job where that is up to the store."""
        ended = [self.world.books[settlement.id] for settlement in batch if settlement.id in self.world.books]
        spawned = [row for settlement in batch for row in settlement.spawn if row.expires is not None]
        grouped = any(one.group is not None for one in ended) or any(row.group is not None for row in spawned)
        late = any(laws.expired(record, self.now) for record in ended) or any(row.expires == 0 for row in spawned)
        return late and (grouped or bool(self.world.governed) or not self.strict)

    # -- renew

    @precondition(lambda self: self.world.live_fences())
    @rule(beat=draws.beats(), after=draws.pauses)
    def renew(self, beat: Beat, after: int) -> None:
        self.begin_rule("renew", after)
        self.beat(beat)

    def beat(self, beat: Beat) -> None:
        """Renew."""
        renewed = self.twins.ask(lambda backend: backend.renew(beat, self.now), tidy_renewed)
        self.world.instants.add(self.now + beat.ttl)
        kept: set[JobId] = {job_id for job_id, _ in set(beat.leases) - set(renewed.lost)}
        late = [job_id for job_id in kept if (self.world.books[job_id].lease_until or 0) <= self.now]
        self.note(
            *("renew: extended" for _ in kept),
            *("renew: a lease past its end" for _ in late),
            *("renew: lost" for _ in renewed.lost),
            *("renew: a cancel request" for _ in renewed.cancels),
            *("renew: a paused queue" for _ in renewed.paused),
            *("renew: leaving" for _ in range(beat.leaving)),
        )
