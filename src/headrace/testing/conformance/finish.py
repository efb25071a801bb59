"""finish: the fence, the states, patches, results, spawned rows, cancel requests."""

from __future__ import annotations

import asyncio

import pytest

from headrace.seam.protocol import Backend
from headrace.seam.records import Cancel, Claim, JobKey, Reap, Resume, Selector, Settlement
from headrace.testing.conformance.base import (
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    T0,
    ConformanceBase,
    job_id,
    needs,
    number,
    row,
    settle,
)
from headrace.types import JobState

A, C, F = JobState.AVAILABLE, JobState.COMPLETED, JobState.FAILED


class FinishTests(ConformanceBase):
    async def test_completed_keeps_result_and_record(self, store: Backend) -> None:
        await self.put(store, row(1, cells={"blob": b"b"}))
        job = await self.take_one(store)
        assert await store.finish([settle(job, result=b"r", result_ttl=HOUR)], T0 + 5) == [C]
        record = await self.get(store, 1, "result", "blob", at=T0 + 6)
        assert (record.state, record.finished_at, record.result, record.held) == (C, T0 + 5, b"r", True)
        assert (record.epoch, record.lease_until, record.cells) == (T0, None, {"blob": b"b"})
        assert await self.take(store) == []

    async def test_a_result_is_gone_when_its_ttl_ends(self, store: Backend) -> None:
        await self.put(store, row(1))
        await store.finish([settle(await self.take_one(store), result=b"r", result_ttl=10)], T0)
        assert (await self.get(store, 1, "result", at=T0 + 9)).result == b"r"
        late = await self.get(store, 1, "result", at=T0 + 10)
        assert (late.state, late.result, late.held) == (C, None, False)

    async def test_no_result_differs_from_an_empty_one(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        one, two = await self.take(store)
        await store.finish([settle(one, result=None, result_ttl=9), settle(two, result=b"", result_ttl=9)], T0)
        assert (await self.get(store, 1, "result")).result is None
        assert (await self.get(store, 2, "result")).result == b""

    async def test_completed_without_keep_leaves_nothing(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        job = await self.take_one(store)
        assert await store.finish([settle(job, keep=False)], T0) == [C]
        assert await store.fetch([job_id(1), JobKey("q", "k")], at=T0) == [None, None]
        assert (await store.stats(T0)).queues == []
        await self.put(store, row(2, key="k"))

    async def test_failed_lies_with_the_dead_letters_and_keeps_its_payload(self, store: Backend) -> None:
        await self.put(store, row(1, cells={"blob": b"b"}))
        job = await self.take_one(store)
        await store.finish([settle(job, F, error=b"why", reason="boom", failed_attempt=True)], T0)
        record = await self.get(store, 1, "error", "blob")
        assert (record.state, record.error, record.reason, record.attempt) == (F, b"why", "boom", 1)
        assert record.cells == {"blob": b"b"}
        page = await store.scan(Selector(states=frozenset({F})), at=T0)
        assert [r.id for r in page.records] == [job_id(1)]

    async def test_available_again_after_a_delay(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        assert await store.finish([settle(job, A, delay=SECOND, failed_attempt=True, error=b"e")], T0) == [A]
        assert await self.take(store, at=T0 + SECOND - 1) == []
        again = await self.take_one(store, at=T0 + SECOND)
        assert (again.attempt, again.epoch, again.error, again.run_at) == (1, T0 + SECOND, b"e", T0 + SECOND)

    async def test_available_without_delay_goes_to_the_back(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        first = await self.take_one(store, at=T0 + 1)
        await store.finish([settle(first, A)], T0 + 1)
        assert [j.id for j in await self.take(store, at=T0 + 1)] == [job_id(2), job_id(1)]

    @needs("strict_order")
    async def test_available_with_delay_none_keeps_its_place(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        first = await self.take_one(store)
        await store.finish([settle(first, A, delay=None)], T0 + SECOND)
        again = await self.take(store, at=T0 + SECOND)
        assert [(j.id, j.attempt) for j in again] == [(job_id(1), 0), (job_id(2), 0)]

    @pytest.mark.parametrize("state", [A, JobState.PAUSED])
    async def test_an_instant_may_be_given_instead_of_a_delay(self, store: Backend, state: JobState) -> None:
        await self.put(store, row(1), row(2), row(3))
        one, two, _ = await self.take(store, at=T0 + 1)
        batch = [settle(one, state, delay=HOUR, run_at=T0 - HOUR), settle(two, state, delay=None, run_at=T0 + SECOND)]
        assert await store.finish(batch, T0 + 2) == [state, state]
        assert [(await self.get(store, n)).run_at for n in (1, 2)] == [T0 - HOUR, T0 + SECOND]
        if state is JobState.PAUSED:
            await store.alter(Selector(queue="q"), Resume(), T0 + 2)
        assert [j.id for j in await self.take(store, at=T0 + SECOND - 1)] == [job_id(1)]
        assert [j.id for j in await self.take(store, at=T0 + SECOND)] == [job_id(2)]

    async def test_an_end_has_no_use_for_an_instant(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        one, two = await self.take(store)
        await store.alter(Selector(ids=[two.id]), Cancel(), T0)
        batch = [settle(one, C, run_at=T0 + HOUR), settle(two, A, run_at=T0 + HOUR)]
        assert await store.finish(batch, T0) == [C, JobState.CANCELLED]
        assert [(await self.get(store, n)).run_at for n in (1, 2)] == [T0, T0]

    async def test_a_lease_does_not_end_in_running(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        one, two = await self.take(store)
        wrong = [settle(one, spawn=[row(3)]), settle(two, JobState.RUNNING)]
        with pytest.raises(ValueError, match="running"):
            await store.finish(wrong, T0)
        if store.finish_and_claim is not None:
            with pytest.raises(ValueError, match="running"):
                await store.finish_and_claim(wrong, Claim("w1", ("q",), 10, LEASE), T0)
        assert [await self.state(store, n) for n in (1, 2)] == [JobState.RUNNING, JobState.RUNNING]
        assert await store.finish([settle(one), settle(two)], T0) == [C, C]
        assert await self.take(store) == []

    async def test_paused_waits_for_a_resume(self, store: Backend) -> None:
        await self.put(store, row(1))
        assert await store.finish([settle(await self.take_one(store), JobState.PAUSED)], T0) == [JobState.PAUSED]
        assert await self.take(store, at=T0 + HOUR) == []

    async def test_an_error_stays_until_it_is_replaced(self, store: Backend) -> None:
        await self.put(store, row(1))
        await store.finish([settle(await self.take_one(store), A, error=b"first")], T0)
        await store.finish([settle(await self.take_one(store), A)], T0)
        assert (await self.take_one(store)).error == b"first"

    async def test_sections_are_replaced_cleared_or_kept(self, store: Backend) -> None:
        cells = {"parameters": b"p", "vm_state": b"v", "metadata": b"m"}
        await self.put(store, row(1, cells=cells))
        patch: dict[str, bytes | None] = {"vm_state": b"v2", "metadata": None, "blob": b""}
        await store.finish([settle(await self.take_one(store), A, cells=patch)], T0)
        assert (await self.take_one(store)).cells == {"parameters": b"p", "vm_state": b"v2", "blob": b""}

    async def test_cells_of_some_mebibytes_come_back_as_they_were(self, store: Backend) -> None:
        """From every way in, by every way out, while others go on beside them."""
        first, second, third = (bytes([n]) + bytes(range(251)) * 12_000 for n in range(3))
        small = row(3, queue="other")
        await asyncio.gather(
            self.put(store, row(1, cells={"parameters": first, "blob": second})),
            self.put(store, row(2, cells={"vm_state": second}, key="k", headers=b"h")),
            self.put(store, small),
        )
        jobs, [other] = await asyncio.gather(self.take(store), self.take(store, queues=("other",)))
        found = {number(job): dict(job.cells) for job in jobs + await self.take(store)}
        assert found == {1: {"parameters": first, "blob": second}, 2: {"vm_state": second}}
        assert other.cells == small.cells
        [one] = [job for job in jobs if number(job) == 1]
        again = settle(one, JobState.AVAILABLE, cells={"blob": third, "parameters": None, "metadata": first})
        await store.finish([again], T0)
        [one] = await self.take(store)
        assert one.cells == {"metadata": first, "blob": third}
        await store.finish([settle(one, result=second, result_ttl=MINUTE)], T0)
        [record] = await store.fetch([one.id], frozenset(("metadata", "blob", "result")), T0)
        assert record is not None
        assert (record.cells, record.result) == ({"metadata": first, "blob": third}, second)

    async def test_queue_and_priority_may_change_with_the_outcome(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"), row(2, queue="other"))
        await store.finish([settle(await self.take_one(store), A, queue="other", priority=-1)], T0)
        assert await self.take(store) == []
        jobs = await self.take(store, queues=("other",))
        assert [(j.id, j.queue, j.priority, j.key) for j in jobs] == [
            (job_id(1), "other", -1, "k"),
            (job_id(2), "other", 0, None),
        ]
        await self.put(store, row(3, key="k"))
        assert [a.id for a in await store.insert([row(4, queue="other", key="k")], T0)] == [job_id(1)]

    async def test_a_job_moved_to_where_its_key_is_taken_goes_without_it(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"), row(2, queue="other", key="k"))
        await store.finish([settle(await self.take_one(store), A, queue="other")], T0)
        assert [(j.id, j.key) for j in await self.take(store, queues=("other",))] == [
            (job_id(1), None),
            (job_id(2), "k"),
        ]
        await self.put(store, row(3, key="k"))

    @pytest.mark.parametrize("state", [A, JobState.PAUSED, C, JobState.CANCELLED, F])
    @pytest.mark.parametrize("wrong", ["epoch", "holder", "id"])
    async def test_a_wrong_fence_changes_nothing(self, store: Backend, state: JobState, wrong: str) -> None:
        await self.put(store, row(1, key="k"))
        job = await self.take_one(store)
        bad = Settlement(
            job_id(9) if wrong == "id" else job.id,
            job.epoch + 1 if wrong == "epoch" else job.epoch,
            "w2" if wrong == "holder" else "w1",
            state,
            result=b"bad",
            result_ttl=HOUR,
            error=b"bad",
            cells={"blob": b"bad"},
            queue="bad",
            priority=9,
            failed_attempt=True,
            spawn=[row(2)],
        )
        before = await self.get(store, 1, "error", "result", "blob", "parameters")
        assert await store.finish([bad], T0) == [None]
        assert await self.get(store, 1, "error", "result", "blob", "parameters") == before
        assert await store.fetch([job_id(2)], at=T0) == [None]
        assert await store.finish([settle(job)], T0) == [C]

    @pytest.mark.parametrize("wrong", ["epoch", "holder"])
    async def test_a_plain_completion_under_a_wrong_fence_is_refused(self, store: Backend, wrong: str) -> None:
        """Settlements with nothing but an outcome, which is the usual case; alone and among others."""
        await self.put(store, row(1), row(2))
        jobs = await self.take(store, 2)
        epoch, holder = jobs[0].epoch + (wrong == "epoch"), "w2" if wrong == "holder" else "w1"
        bad = Settlement(jobs[0].id, epoch, holder, C)
        assert await store.finish([bad], T0) == [None]
        assert await store.finish([bad, settle(jobs[1])], T0) == [None, C]
        assert (await self.get(store, 1)).state is JobState.RUNNING
        assert await store.finish([settle(jobs[0])], T0) == [C]

    async def test_a_stale_worker_is_fenced_off_after_the_job_was_taken_back(self, store: Backend) -> None:
        await self.put(store, row(1))
        stale = await self.take_one(store)
        await store.reap(Reap(), T0 + LEASE)
        assert await store.finish([settle(stale, result=b"stale", result_ttl=9)], T0 + LEASE) == [None]
        fresh = await self.take_one(store, holder="w2", at=T0 + LEASE)
        assert await store.finish([settle(stale, result=b"stale", result_ttl=9)], T0 + LEASE) == [None]
        assert await store.finish([settle(fresh, holder="w2", result=b"ok", result_ttl=9)], T0 + LEASE) == [C]
        assert await store.finish([settle(stale, F)], T0 + LEASE) == [None]
        assert (await self.get(store, 1, "result", at=T0 + LEASE)).result == b"ok"

    async def test_the_same_holder_is_fenced_off_by_its_own_older_epoch(self, store: Backend) -> None:
        await self.put(store, row(1))
        first = await self.take_one(store)
        await store.reap(Reap(), T0 + LEASE)
        second = await self.take_one(store, at=T0 + LEASE)
        assert (await store.finish([settle(first), settle(second)], T0 + LEASE)) == [None, C]

    async def test_a_lease_past_its_expiry_counts_until_somebody_reaps(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        assert await store.finish([settle(job)], T0 + 10 * LEASE) == [C]

    async def test_a_settlement_counts_once(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        assert await store.finish([settle(job, A, failed_attempt=True), settle(job, C)], T0) == [A, None]
        assert await store.finish([settle(job, C)], T0) == [None]
        record = await self.get(store, 1)
        assert (record.state, record.attempt) == (A, 1)

    async def test_terminal_is_final(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        await store.finish([settle(job)], T0)
        for state in (A, F, JobState.CANCELLED):
            assert await store.finish([settle(job, state)], T0) == [None]
        assert await self.state(store, 1) is C

    async def test_a_batch_answers_each_on_its_own(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(4)))
        jobs = await self.take(store)
        batch = [settle(jobs[0]), settle(jobs[1], holder="zz"), settle(jobs[2], F), settle(jobs[3], A)]
        assert await store.finish(batch, T0) == [C, None, F, A]

    async def test_only_one_of_two_concurrent_settlements_counts(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(40)))
        jobs = await self.take(store)
        sibling = store.sibling()
        await sibling.open()
        try:
            calls = [side.finish([settle(j)], T0) for j in jobs for side in (store, sibling)]
            answers = [state for [state] in await asyncio.gather(*calls)]
        finally:
            await sibling.close()
        assert answers.count(C) == 40
        assert answers.count(None) == 40

    # -- spawn

    async def test_spawned_rows_come_with_the_outcome(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        await store.finish([settle(job, spawn=[row(2, delay=5), row(3, queue="other", key="k")])], T0)
        assert {j.id for j in await self.take(store, queues=("q", "other"), at=T0 + 5)} == {job_id(3), job_id(2)}

    @pytest.mark.parametrize(
        ("number", "names", "problem"),
        [(501, {}, "500 jobs"), (101, {"queue": "q"}, "100 queues"), (101, {"group": "g"}, "100 groups")],
        ids=["rows", "queues", "groups"],
    )
    async def test_a_settlement_that_spawns_too_much_is_refused(
        self, store: Backend, number: int, names: dict[str, str], problem: str
    ) -> None:
        """They would be one step, and hold up everybody else."""
        await self.put(store, row(1), row(2))
        one, two = await self.take(store)
        rows = [row(10 + n, **{name: f"{value}{n}" for name, value in names.items()}) for n in range(number)]
        batch = [settle(one), settle(two, spawn=rows)]
        with pytest.raises(ValueError, match=problem):
            await store.finish(batch, T0)
        assert [await self.state(store, n) for n in (1, 2)] == [JobState.RUNNING, JobState.RUNNING]
        most = rows[: number - 1]
        assert await store.finish([settle(one), settle(two, spawn=most)], T0) == [C, C]
        assert None not in await store.fetch([one.id for one in most], at=T0)

    async def test_hundreds_of_settlements_that_are_not_plain_are_answered_in_order(self, store: Backend) -> None:
        """However a store cuts such a batch."""
        await self.put(store, *(row(n) for n in range(300)))
        jobs = await self.take(store, 300)
        batch = [settle(job, A, delay=HOUR, failed_attempt=True, spawn=[row(1_000 + n)]) for n, job in enumerate(jobs)]
        batch[100:100] = [Settlement(jobs[0].id, 1, "w1", A)]
        states: list[JobState | None] = [A] * 300
        states[100:100] = [None]
        assert await store.finish(batch, T0) == states
        assert len(await self.take(store, 1_000)) == 300

    async def test_a_spawned_duplicate_is_no_error(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, key="k", delay=HOUR), row(3, delay=HOUR))
        job = await self.take_one(store)
        assert await store.finish([settle(job, spawn=[row(4, key="k"), row(3), row(5)])], T0) == [C]
        assert await store.fetch([job_id(4)], at=T0) == [None]
        assert [j.id for j in await self.take(store)] == [job_id(5)]

    async def test_a_job_may_spawn_its_own_successor_under_its_key(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        job = await self.take_one(store)
        await store.finish([settle(job, result=b"r", result_ttl=0, spawn=[row(2, key="k")])], T0)
        assert [j.id for j in await self.take(store)] == [job_id(2)]

    # -- cancel requests

    @pytest.mark.parametrize("state", [A, JobState.PAUSED])
    async def test_a_cancel_request_wins_over_going_back(self, store: Backend, state: JobState) -> None:
        await self.put(store, row(1, key="k"))
        job = await self.take_one(store)
        await store.alter(Selector(ids=[job.id]), Cancel(), T0)
        assert await store.finish([settle(job, state, failed_attempt=True)], T0) == [JobState.CANCELLED]
        record = await self.get(store, 1)
        assert (record.state, record.reason, record.cancel_requested) == (JobState.CANCELLED, "cancelled", False)
        await self.put(store, row(2, key="k"))

    @pytest.mark.parametrize("state", [C, F])
    async def test_a_cancel_request_loses_against_an_end(self, store: Backend, state: JobState) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        await store.alter(Selector(ids=[job.id]), Cancel(), T0)
        assert await store.finish([settle(job, state)], T0) == [state]

    # -- consecutive losses

    async def test_a_settlement_forgets_losses_unless_told_to_keep_them(self, store: Backend) -> None:
        await self.put(store, row(1))
        await self.take_one(store)
        await store.reap(Reap(), T0 + LEASE)
        job = await self.take_one(store, at=T0 + LEASE)
        assert job.lost == 1
        await store.finish([settle(job, A, keep_lost=True)], T0 + LEASE)
        job = await self.take_one(store, at=T0 + LEASE)
        assert job.lost == 1
        await store.finish([settle(job, A)], T0 + LEASE)
        assert (await self.take_one(store, at=T0 + LEASE)).lost == 0
