"""alter: cancel, pause, resume, requeue, move, reprioritise, reschedule, watch, hold, delete; and paused queues."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.seam.policy import QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Altered,
    Cancel,
    Change,
    Claim,
    Delete,
    Hold,
    InsertStatus,
    JobId,
    JobKey,
    Move,
    Pause,
    Reap,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Selector,
    Watch,
)
from headrace.testing.conformance.base import HOUR, LEASE, SECOND, T0, ConformanceBase, job_id, needs, row, settle
from headrace.types import JobState

AVAILABLE, RUNNING, PAUSED = JobState.AVAILABLE, JobState.RUNNING, JobState.PAUSED
COMPLETED, CANCELLED, FAILED = JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED


def one(number: int) -> Selector:
    return Selector(ids=[job_id(number)])


class AlterTests(ConformanceBase):
    async def _job_in(self, store: Backend, state: JobState, number: int = 1) -> None:
        await self.put(store, row(number, key=f"k{number}"))
        if state is PAUSED:
            await store.alter(one(number), Pause(), T0)
        elif state is not AVAILABLE:
            job = await self.take_one(store)
            if state is not RUNNING:
                await store.finish([settle(job, state, result=b"r", result_ttl=HOUR, error=b"e")], T0)

    @pytest.mark.parametrize(
        ("change", "outcomes"),
        [
            (Cancel(), {AVAILABLE: CANCELLED, PAUSED: CANCELLED, RUNNING: RUNNING}),
            (Pause(), {AVAILABLE: PAUSED}),
            (Resume(), {PAUSED: AVAILABLE}),
            (Requeue(), {COMPLETED: AVAILABLE, CANCELLED: AVAILABLE, FAILED: AVAILABLE}),
            (Move("other"), {AVAILABLE: AVAILABLE, PAUSED: PAUSED}),
            (Reprioritise(5), {AVAILABLE: AVAILABLE, PAUSED: PAUSED}),
            (Reschedule(SECOND), {AVAILABLE: AVAILABLE, PAUSED: PAUSED}),
            (Hold(HOUR), {COMPLETED: COMPLETED}),
            (Delete(), dict.fromkeys((AVAILABLE, PAUSED, COMPLETED, CANCELLED, FAILED))),
        ],
    )
    @pytest.mark.parametrize("state", list(JobState))
    async def test_a_change_applies_to_its_states_and_to_no_other(
        self, store: Backend, state: JobState, change: Change, outcomes: dict[JobState, JobState | None]
    ) -> None:
        await self._job_in(store, state)
        before = await self.get(store, 1, "result", "error", "parameters")
        [altered] = await store.alter(one(1), change, T0)
        if state in outcomes:
            queue = change.queue if isinstance(change, Move) else "q"
            assert altered == Altered(job_id(1), state, outcomes[state], True, queue, "k1")
        else:
            assert altered == Altered(job_id(1), state, state, False, "q", "k1")
            assert await self.get(store, 1, "result", "error", "parameters") == before

    async def test_unknown_jobs_are_left_out_and_order_is_kept(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, key="k"))
        altered = await store.alter(Selector(ids=[job_id(9), job_id(2), job_id(1)]), Pause(), T0)
        assert [a.id for a in altered] == [job_id(2), job_id(1)]
        assert await store.alter(Selector(keys=[JobKey("q", "none"), JobKey("x", "k")]), Resume(), T0) == []
        [by_key] = await store.alter(Selector(keys=[JobKey("q", "k")]), Resume(), T0)
        assert by_key.id == job_id(2)

    async def test_a_cancelled_job_never_starts(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, delay=SECOND))
        await store.alter(Selector(ids=[job_id(1), job_id(2)]), Cancel("no need"), T0)
        assert await self.take(store, at=T0 + HOUR) == []
        record = await self.get(store, 1)
        assert (record.state, record.reason, record.finished_at) == (CANCELLED, "no need", T0)

    async def test_cancelling_a_running_job_asks_its_holder(self, store: Backend) -> None:
        await self._job_in(store, RUNNING)
        await store.alter(one(1), Cancel(), T0)
        record = await self.get(store, 1)
        assert (record.state, record.cancel_requested) == (RUNNING, True)
        [again] = await store.insert([row(2, key="k1")], T0)
        assert again.status is InsertStatus.DUPLICATE

    async def test_pause_and_resume_keep_the_jobs_place(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        await store.alter(one(1), Pause(), T0)
        await store.alter(one(1), Resume(), T0 + SECOND)
        assert [j.id for j in await self.take(store, at=T0 + SECOND)] == [job_id(1), job_id(2)]

    async def test_requeue_starts_afresh_with_the_same_payload(self, store: Backend) -> None:
        await self.put(store, row(1, cells={"blob": b"b"}, expires=SECOND))
        job = await self.take_one(store)
        await store.finish([settle(job, FAILED, failed_attempt=True, error=b"e", reason="boom")], T0)
        await store.alter(one(1), Requeue(), T0 + HOUR)
        record = await self.get(store, 1, "error", at=T0 + HOUR)
        assert (record.state, record.attempt, record.lost, record.reason) == (AVAILABLE, 0, 0, "")
        assert (record.error, record.finished_at, record.run_at) == (None, None, T0 + HOUR)
        again = await self.take_one(store, at=T0 + HOUR)
        assert (again.epoch, again.attempt, again.cells) == (T0 + HOUR, 0, {"blob": b"b"})
        assert await store.finish([settle(job, COMPLETED)], T0 + HOUR) == [None]

    async def test_requeue_takes_the_key_back_unless_another_has_it(self, store: Backend) -> None:
        await self._job_in(store, FAILED)
        await self.put(store, row(2, key="k1"))
        [refused] = await store.alter(one(1), Requeue(), T0)
        assert refused == Altered(job_id(1), FAILED, FAILED, False, "q", "k1")
        await store.alter(one(2), Cancel(), T0)
        [taken] = await store.alter(one(1), Requeue(), T0)
        assert taken.changed
        [again] = await store.insert([row(3, key="k1")], T0)
        assert (again.status, again.id) == (InsertStatus.DUPLICATE, job_id(1))

    async def test_a_requeued_completed_job_gives_its_new_result(self, store: Backend) -> None:
        await self._job_in(store, COMPLETED)
        await store.alter(one(1), Requeue(), T0)
        [live] = await store.insert([row(2, key="k1")], T0)
        assert live.status is InsertStatus.DUPLICATE
        await store.finish([settle(await self.take_one(store), result=b"new", result_ttl=HOUR)], T0)
        assert (await self.get(store, 1, "result")).result == b"new"

    async def test_move_takes_job_and_key_along(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"), row(2, queue="taken", key="k"))
        [refused] = await store.alter(one(1), Move("taken"), T0)
        assert not refused.changed
        await store.alter(one(1), Move("free"), T0)
        assert [(j.id, j.queue) for j in await self.take(store, queues=("free",))] == [(job_id(1), "free")]
        await self.put(store, row(3, key="k"))

    async def test_reprioritise_reorders(self, store: Backend) -> None:
        await self.put(store, row(1), row(2), row(3))
        await store.alter(one(3), Reprioritise(-1), T0)
        await store.alter(one(1), Reprioritise(1), T0)
        assert [j.id for j in await self.take(store)] == [job_id(3), job_id(2), job_id(1)]

    async def test_reschedule_makes_a_job_due_now_later_or_before_others(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, delay=HOUR), row(3), row(4))
        await store.alter(one(1), Reschedule(SECOND), T0)
        await store.alter(one(2), Reschedule(), T0)
        await store.alter(one(4), Reschedule(delay=HOUR, run_at=T0 - HOUR), T0)
        assert [j.id for j in await self.take(store)] == [job_id(4), job_id(2), job_id(3)]
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0)
        assert (claimed.jobs, claimed.next_in) == ([], SECOND)
        again = await self.take_one(store, at=T0 + SECOND)
        assert (again.id, again.run_at, again.attempt) == (job_id(1), T0 + SECOND, 0)

    async def test_a_paused_job_keeps_the_new_time_when_it_is_resumed(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, delay=HOUR))
        both = Selector(ids=[job_id(1), job_id(2)])
        await store.alter(both, Pause(), T0)
        await store.alter(one(1), Reschedule(run_at=T0 + HOUR), T0)
        await store.alter(one(2), Reschedule(), T0)
        assert [(await self.get(store, n)).run_at for n in (1, 2)] == [T0 + HOUR, T0]
        await store.alter(both, Resume(), T0)
        assert [j.id for j in await self.take(store)] == [job_id(2)]
        assert [j.id for j in await self.take(store, at=T0 + HOUR)] == [job_id(1)]

    async def test_a_rescheduled_job_stays_what_it_was(self, store: Backend) -> None:
        await self.put(store, row(1, key="k", tenant="a", priority=3, cells={"blob": b"b"}))
        await store.finish([settle(await self.take_one(store), AVAILABLE, failed_attempt=True, error=b"e")], T0)
        before = await self.get(store, 1, "error", "blob")
        await store.alter(one(1), Reschedule(SECOND), T0)
        assert replace(await self.get(store, 1, "error", "blob"), run_at=T0) == before
        [queue] = (await store.stats(T0)).queues
        assert (queue.available, queue.scheduled) == (1, 1)
        [again] = await store.insert([row(2, key="k")], T0)
        assert again.status is InsertStatus.DUPLICATE

    async def test_a_rescheduled_job_expires_when_it_would_have(self, store: Backend) -> None:
        await self.put(store, row(1, expires=SECOND), row(2, expires=SECOND), row(3, expires=SECOND, delay=HOUR))
        await store.alter(one(1), Reschedule(SECOND - 1), T0)
        await store.alter(one(2), Reschedule(HOUR), T0)
        await store.alter(one(3), Reschedule(), T0)
        jobs = await self.take(store, at=T0 + SECOND - 1)
        assert [j.id for j in jobs] == [job_id(3), job_id(1)]
        await store.finish([settle(job) for job in jobs], T0 + SECOND)
        assert await store.reap(Reap(), T0 + HOUR - 1) == []
        [expired] = await store.reap(Reap(), T0 + HOUR)
        assert (expired.id, expired.reason) == (job_id(2), "expired")

    async def test_ended_jobs_are_met_by_their_reason(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(1, 5)))
        reasons = ("boom", "poison", "boom")
        jobs = await self.take(store, 3)
        await store.finish([settle(job, FAILED, reason=why) for job, why in zip(jobs, reasons, strict=True)], T0)
        poison = Selector(reason="poison")
        assert [r.id for r in (await store.scan(poison, at=T0)).records] == [job_id(2)]
        assert [r.id for r in (await store.scan(Selector(reason=""), at=T0)).records] == [job_id(4)]
        assert [a.id for a in await store.alter(poison, Requeue(), T0)] == [job_id(2)]
        assert await store.alter(poison, Requeue(), T0) == []
        named = Selector(ids=[job_id(n) for n in range(1, 5)], reason="boom")
        assert [a.id for a in await store.alter(named, Delete(), T0)] == [job_id(1), job_id(3)]
        assert await store.alter(Selector(reason="boom"), Cancel(), T0) == []

    async def test_hold_changes_how_long_result_and_key_are_held(self, store: Backend) -> None:
        await self._job_in(store, COMPLETED)
        await store.alter(one(1), Hold(2 * HOUR), T0 + SECOND)
        later = T0 + 2 * HOUR
        assert (await self.get(store, 1, "result", at=later)).result == b"r"
        await store.alter(one(1), Hold(0), later)
        assert (await self.get(store, 1, "result", at=later)).result is None
        [gone] = await store.alter(one(1), Hold(HOUR), later)
        assert not gone.changed
        await self.put(store, row(2, key="k1"), at=later)

    async def test_delete_leaves_nothing(self, store: Backend) -> None:
        await self._job_in(store, FAILED)
        await store.alter(one(1), Delete(), T0)
        assert await store.fetch([job_id(1), JobKey("q", "k1")], at=T0) == [None, None]
        await self.put(store, row(1, key="k1"))

    async def test_a_filter_meets_only_jobs_that_the_change_applies_to(self, store: Backend) -> None:
        await self.put(store, row(1, tenant="a"), row(2, tenant="b"), row(3, queue="r", tenant="a"), row(4, task="u"))
        await self.put(store, row(5, tenant="a"), at=T0 + HOUR)
        await self.take_one(store)
        assert [a.id for a in await store.alter(Selector(queue="q", tenant="a"), Pause(), T0)] == [job_id(5)]
        assert [a.id for a in await store.alter(Selector(task="u"), Cancel(), T0)] == [job_id(4)]
        old = Selector(older_than=HOUR, states=frozenset({AVAILABLE}))
        assert [a.id for a in await store.alter(old, Delete(), T0 + HOUR)] == [job_id(2), job_id(3)]

    async def test_a_filter_is_worked_off_in_bounded_steps(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(25)))
        sizes = [len(await store.alter(Selector(queue="q", limit=10), Cancel(), T0)) for _ in range(4)]
        assert sizes == [10, 10, 5, 0]

    @pytest.mark.parametrize("change", [Reprioritise(3), Reschedule(9), Watch("inbox"), Pause(), Move("q"), Delete()])
    async def test_going_on_above_the_last_meets_each_job_once(self, store: Backend, change: Change) -> None:
        await self.put(store, *(row(n) for n in range(25)))
        met: list[JobId] = []
        above = None
        for size in (10, 10, 5):
            answers = await store.alter(Selector(queue="q", above=above, limit=10), change, T0)
            assert len(answers) == size
            met += [answer.id for answer in answers]
            above = met[-1]
        assert met == [job_id(n) for n in range(25)]
        assert await store.alter(Selector(queue="q", above=above), change, T0) == []

    async def test_a_filter_answers_for_those_that_it_had_to_refuse(self, store: Backend) -> None:
        for n in (1, 2):
            await self.put(store, row(n, key="k"))
            await store.finish([settle(await self.take_one(store), FAILED)], T0)
        await self.put(store, row(3, key="k"))
        answers = await store.alter(Selector(queue="q"), Requeue(), T0)
        assert [(a.id, a.after, a.changed) for a in answers] == [(job_id(n), FAILED, False) for n in (1, 2)]

    async def test_a_job_that_is_named_twice_is_met_once(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"), row(2), row(3))
        twice = Selector(ids=[job_id(2), job_id(1), job_id(2)], keys=[JobKey("q", "k")])
        assert [r.id for r in (await store.scan(twice, at=T0)).records] == [job_id(2), job_id(1)]
        assert [a.id for a in await store.alter(twice, Cancel(), T0)] == [job_id(2), job_id(1)]

    async def test_hundreds_of_jobs_are_met_once_and_answered_in_order(self, store: Backend) -> None:
        """However a store cuts such a change."""
        await self.put(store, *(row(n, key=f"k{n}") for n in range(450)))
        ids = [job_id(n) for n in reversed(range(450))]
        assert [a.id for a in await store.alter(Selector(ids=[*ids, *ids]), Pause(), T0)] == ids
        keys = [JobKey("q", f"k{n}") for n in reversed(range(450))]
        assert [a.id for a in await store.alter(Selector(keys=keys), Resume(), T0)] == ids
        first = await store.alter(Selector(queue="q", limit=430), Cancel(), T0)
        assert [a.id for a in first] == ids[::-1][:430]
        rest = await store.alter(Selector(queue="q", limit=430, above=first[-1].id), Cancel(), T0)
        assert [a.id for a in rest] == ids[::-1][430:]

    async def test_names_are_narrowed_by_everything_else(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, queue="r"), row(3))
        ids = [job_id(3), job_id(2), job_id(1)]
        assert [a.id for a in await store.alter(Selector(ids=ids, queue="q"), Pause(), T0)] == [job_id(3), job_id(1)]
        assert [a.id for a in await store.alter(Selector(ids=ids, above=job_id(1)), Cancel(), T0)] == ids[:2]

    async def test_asking_all_running_jobs_to_stop_ends(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        await self.take(store)
        sizes = [len(await store.alter(Selector(queue="q"), Cancel(), T0)) for _ in range(2)]
        assert sizes == [2, 0]

    @needs("policies")
    async def test_pausing_a_queue_changes_no_job(self, store: Backend) -> None:
        await self.put(store, row(1))
        await self.policies(store).pause(QueuePause("q"), T0)
        assert await self.state(store, 1) is AVAILABLE
        assert [(q.queue, q.paused) for q in (await store.stats(T0)).queues] == [("q", True)]
        assert await self.take(store) == []

    @needs("policies")
    async def test_a_paused_queue_takes_jobs_in_and_lets_running_ones_end(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        await self.policies(store).pause(QueuePause("q"), T0)
        await self.put(store, row(2))
        assert await store.finish([settle(job)], T0) == [COMPLETED]
