"""Groups: which jobs are called, one after the other or several at once."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from headrace.seam.policy import Policy
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Cancel,
    Change,
    Claim,
    Delete,
    JobId,
    Leased,
    Move,
    Pause,
    Reap,
    Reprioritise,
    Requeue,
    Reschedule,
    Resume,
    Selector,
)
from headrace.testing.conformance.base import (
    HOSTILE,
    LEASE,
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


def numbers(jobs: list[Leased]) -> list[int]:
    """Which jobs these are."""
    return [number(job) for job in jobs]


class GroupTests(ConformanceBase):
    async def turns(self, store: Backend, turns: int) -> None:
        """Let this many jobs of every group be called."""
        assert store.policies is not None
        policy = next((one.policy for one in await store.policies.find(["q"])), Policy(queue="q"))
        assert await store.policies.save(replace(policy, group_running=turns), T0)

    async def called(self, store: Backend, group: str = "g") -> tuple[JobId, ...]:
        assert store.policies is not None
        return (await store.policies.group("q", group)).called

    async def test_a_group_is_told_with_the_job(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"), row(2))
        first, second = await self.take(store)
        assert (first.group, second.group) == ("g", None)
        assert ((await self.get(store, 1)).group, (await self.get(store, 2)).group) == ("g", None)

    async def test_jobs_of_a_group_run_one_after_the_other(self, store: Backend) -> None:
        await self.put(store, *(row(n, group="g") for n in range(3)), row(3))
        for expected in ([0, 3], [1], [2], []):
            jobs = await self.take(store)
            assert numbers(jobs) == expected
            assert await self.take(store) == []
            await store.finish([settle(job) for job in jobs], T0)

    async def test_groups_do_not_wait_for_each_other(self, store: Backend) -> None:
        await self.put(store, *(row(n, group=f"g{n % 3}") for n in range(6)), row(6, queue="r", group="g0"))
        assert numbers(await self.take(store)) == [0, 1, 2]
        assert numbers(await self.take(store, queues=("r",))) == [6]

    @pytest.mark.parametrize("group", HOSTILE)
    async def test_any_text_is_a_group(self, store: Backend, group: str) -> None:
        await self.put(store, row(1, group=group), row(2, group=group), row(3, group=group[:-1] + "'"))
        jobs = await self.take(store)
        assert (numbers(jobs), jobs[0].group) == ([1, 3], group)

    async def test_a_group_without_a_name_is_one_too(self, store: Backend) -> None:
        await self.put(store, row(1, group=""), row(2, group=""), row(3))
        assert numbers(await self.take(store)) == [1, 3]

    async def test_the_order_of_a_group_is_run_at_then_id_whatever_the_priority(self, store: Backend) -> None:
        await self.put(
            store, row(1, group="g", delay=3), row(2, group="g", delay=1, priority=5), row(3, group="g", delay=2)
        )
        await self.put(store, row(4, group="g", delay=1, priority=-5))
        order = []
        for _ in range(4):
            [job] = await self.take(store, at=T0 + 10)
            order += numbers([job])
            await store.finish([settle(job)], T0 + 10)
        assert order == [2, 4, 3, 1]

    async def test_a_job_that_is_due_does_not_wait_for_one_that_is_not(self, store: Backend) -> None:
        await self.put(store, row(1, group="g", delay=SECOND))
        await self.put(store, row(2, group="g"))
        assert numbers(await self.take(store)) == [2]
        assert await self.take(store, at=T0 + SECOND) == []

    async def test_a_retry_keeps_its_turn(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"), row(2, group="g"))
        [job] = await self.take(store)
        await store.finish([settle(job, JobState.AVAILABLE, delay=SECOND, failed_attempt=True)], T0)
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0)
        assert (claimed.jobs, claimed.next_in) == ([], SECOND)
        await self.put(store, row(3, group="g", run_at=T0 - SECOND))
        assert await self.take(store) == []
        [again] = await self.take(store, at=T0 + SECOND)
        assert numbers([again]) == [1]
        await store.finish([settle(again)], T0 + SECOND)
        assert numbers(await self.take(store, at=T0 + SECOND)) == [3]

    async def test_so_does_a_job_whose_worker_was_lost(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"), row(2, group="g"))
        await self.take(store)
        await store.reap(Reap(), T0 + LEASE)
        [job] = await self.take(store, at=T0 + LEASE)
        assert numbers([job]) == [1]

    @pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.PAUSED])
    async def test_a_job_that_stops_lets_the_next_go(self, store: Backend, state: JobState) -> None:
        await self.put(store, row(1, group="g"), row(2, group="g"))
        [job] = await self.take(store)
        await store.finish([settle(job, state)], T0)
        assert numbers(await self.take(store)) == [2]

    async def test_so_does_one_that_is_lost_for_good(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"), row(2, group="g"))
        await self.take(store)
        await store.reap(Reap(max_lost=0), T0 + LEASE)
        assert numbers(await self.take(store, at=T0 + LEASE)) == [2]

    @pytest.mark.parametrize("change", [Cancel(), Pause(), Delete(), Move("r")])
    async def test_a_called_job_that_is_taken_away_lets_the_next_go(self, store: Backend, change: Change) -> None:
        await self.put(store, *(row(n, group="g") for n in range(3)))
        await store.alter(Selector(ids=[job_id(0)]), change, T0)
        assert numbers(await self.take(store)) == [1]

    @pytest.mark.parametrize("change", [Cancel(), Pause(), Delete(), Move("r")])
    async def test_so_does_one_that_is_taken_out_of_the_line(self, store: Backend, change: Change) -> None:
        await self.put(store, *(row(n, group="g") for n in range(3)))
        await store.alter(Selector(ids=[job_id(1)]), change, T0)
        for expected in (0, 2):
            [job] = await self.take(store)
            assert numbers([job]) == [expected]
            await store.finish([settle(job)], T0)

    async def test_a_moved_job_takes_its_place_in_the_same_group_there(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"), row(2, queue="r", group="g"), row(3, queue="r", group="g", delay=1))
        await store.alter(Selector(ids=[job_id(1)]), Move("r"), T0)
        assert numbers(await self.take(store, queues=("r",), at=T0 + 1)) == [1]

    async def test_a_job_that_moves_as_it_ends_its_run_does_so_too(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"), row(2, group="g"), row(3, queue="r", group="g"))
        [job] = await self.take(store)
        await store.finish([settle(job, JobState.AVAILABLE, queue="r", delay=5)], T0)
        assert numbers(await self.take(store)) == [2]
        [other] = await self.take(store, queues=("r",), at=T0 + 5)
        assert numbers([other]) == [3]
        await store.finish([settle(other)], T0 + 5)
        assert numbers(await self.take(store, queues=("r",), at=T0 + 5)) == [1]

    async def test_resumed_and_requeued_jobs_stand_in_line(self, store: Backend) -> None:
        await self.put(store, *(row(n, group="g") for n in range(4)))
        await store.alter(Selector(ids=[job_id(0)]), Pause(), T0)
        await store.alter(Selector(ids=[job_id(1)]), Cancel(), T0)
        [running] = await self.take(store)
        assert numbers([running]) == [2]
        await store.alter(Selector(ids=[job_id(0)]), Resume(), T0)
        await store.alter(Selector(ids=[job_id(1)]), Requeue(), T0 + 1)
        assert await self.take(store, at=T0 + 1) == []
        order = []
        for _ in range(3):
            await store.finish([settle(running)], T0 + 1)
            [running] = await self.take(store, at=T0 + 1)
            order += numbers([running])
        assert order == [0, 3, 1]

    async def test_another_priority_changes_no_place(self, store: Backend) -> None:
        await self.put(store, *(row(n, group="g") for n in range(3)))
        await store.alter(Selector(ids=[job_id(0), job_id(2)]), Reprioritise(-7), T0)
        for expected in (0, 1, 2):
            [job] = await self.take(store)
            assert numbers([job]) == [expected]
            await store.finish([settle(job)], T0)

    async def test_a_rescheduled_job_takes_the_place_of_its_new_time(self, store: Backend) -> None:
        await self.put(store, *(row(n, group="g") for n in range(4)))
        for n, delay in ((0, 3), (3, -5), (1, 1)):
            await store.alter(Selector(ids=[job_id(n)]), Reschedule(run_at=T0 + delay), T0)
        for expected in (3, 2, 1, 0):
            [job] = await self.take(store, at=T0 + 3)
            assert numbers([job]) == [expected]
            await store.finish([settle(job)], T0 + 3)

    async def test_so_do_several_at_once(self, store: Backend) -> None:
        await self.put(store, *(row(n, group="g") for n in range(3)), row(3))
        await store.alter(Selector(ids=[job_id(n) for n in (0, 3, 1)]), Reschedule(9), T0)
        assert numbers(await self.take(store)) == [2]

    async def test_a_called_job_that_is_put_off_lets_the_next_go(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"), row(2, group="g"), row(3, group="h"))
        await store.alter(Selector(ids=[job_id(1), job_id(3)]), Reschedule(LEASE), T0)
        assert numbers(await self.take(store)) == [2]
        assert numbers(await self.take(store, at=T0 + LEASE)) == [3]

    async def test_one_that_has_run_before_keeps_its_turn(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"), row(2, group="g"))
        [job] = await self.take(store)
        await store.finish([settle(job, JobState.AVAILABLE)], T0)
        await store.alter(Selector(ids=[job_id(1)]), Reschedule(SECOND), T0)
        assert await self.take(store) == []
        assert numbers(await self.take(store, at=T0 + SECOND)) == [1]

    @needs("policies")
    async def test_where_there_are_several_turns_it_does_not(self, store: Backend) -> None:
        await self.turns(store, 2)
        await self.put(store, *(row(n, group="g") for n in range(4)))
        [zero, _] = await self.take(store)
        await store.finish([settle(zero, JobState.AVAILABLE, run_at=T0 - 1)], T0)
        assert await self.called(store) == (job_id(0), job_id(1))
        await store.alter(Selector(ids=[job_id(0)]), Reschedule(SECOND), T0)
        assert await self.called(store) == (job_id(1), job_id(2))
        await store.alter(Selector(ids=[job_id(3)]), Reschedule(run_at=T0 - 1), T0)
        assert await self.called(store) == (job_id(1), job_id(3))
        assert numbers(await self.take(store)) == [3]

    async def test_a_spawned_job_of_the_group_follows(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"))
        [job] = await self.take(store)
        await store.finish([settle(job, spawn=[row(2, group="g"), row(3, group="g")])], T0)
        assert numbers(await self.take(store)) == [2]

    async def test_an_expired_job_in_line_is_cancelled(self, store: Backend) -> None:
        await self.put(store, row(1, group="g"), row(2, group="g", expires=SECOND), row(3, group="g"))
        [job] = await self.take(store)
        assert [one.id for one in await store.reap(Reap(), T0 + SECOND)] == [job_id(2)]
        await store.finish([settle(job)], T0 + SECOND)
        assert numbers(await self.take(store, at=T0 + SECOND)) == [3]

    async def test_a_called_job_that_expires_lets_the_next_go(self, store: Backend) -> None:
        await self.put(store, row(1, group="g", expires=SECOND), row(2, group="g"))
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0 + SECOND)
        assert [one.id for one in claimed.expired] == [job_id(1)]
        assert claimed.jobs or claimed.next_in == 0
        jobs = claimed.jobs or await self.take(store, at=T0 + SECOND)
        assert numbers(jobs) == [2]

    @needs("policies")
    async def test_jobs_that_expire_together_do_not_call_each_other(self, store: Backend) -> None:
        """A tenant whose job is called wakes up for it, and then comes before others."""
        assert store.policies is not None
        assert await store.policies.save(Policy(queue="q", tenant_running=5), T0)
        short = {"group": "g", "expires": SECOND}
        await self.put(store, row(1, tenant="c", **short), row(2, tenant="a", **short))
        await self.put(store, row(3, tenant="a", delay=20 * SECOND), row(4, tenant="b", delay=15 * SECOND))
        reaped = await store.reap(Reap(), T0 + 10 * SECOND)
        assert sorted(one.id for one in reaped) == [job_id(1), job_id(2)]
        jobs = (await store.claim(Claim("w1", ("q",), 2, LEASE), T0 + 30 * SECOND)).jobs
        assert numbers(jobs) == [4, 3]

    async def test_waiting_jobs_are_counted_whether_called_or_not(self, store: Backend) -> None:
        await self.put(store, *(row(n, group="g") for n in range(3)))
        [queue] = (await store.stats(T0)).queues
        assert queue.available == 3

    async def test_only_one_of_many_concurrent_claims_gets_a_job_of_the_group(self, store: Backend) -> None:
        await self.put(store, *(row(n, group="g") for n in range(20)))
        for _ in range(20):
            claims = await asyncio.gather(*(self.take(store, holder=f"w{n}") for n in range(5)))
            [(holder, job)] = [(f"w{n}", job) for n, jobs in enumerate(claims) for job in jobs]
            assert await store.finish([settle(job, holder=holder)], T0) == [JobState.COMPLETED]

    @needs("finish_and_claim")
    async def test_a_turn_that_ends_a_job_gets_the_next_of_its_group(self, store: Backend) -> None:
        assert store.finish_and_claim is not None
        await self.put(store, row(1, group="g"), row(2, group="g"))
        [job] = await self.take(store)
        _, claimed = await store.finish_and_claim([settle(job)], Claim("w1", ("q",), 10, LEASE), T0)
        assert numbers(claimed.jobs) == [2]

    # -- several turns

    @needs("policies")
    async def test_a_policy_may_give_a_group_several_turns(self, store: Backend) -> None:
        await self.turns(store, 2)
        await self.put(store, *(row(n, group="g") for n in range(4)))
        jobs = await self.take(store)
        assert numbers(jobs) == [0, 1]
        await store.finish([settle(jobs[1])], T0)
        assert numbers(await self.take(store)) == [2]

    @needs("policies")
    async def test_where_there_are_several_a_retry_gives_its_turn_back(self, store: Backend) -> None:
        await self.turns(store, 2)
        await self.put(store, *(row(n, group="g") for n in range(4)))
        jobs = await self.take(store)
        await store.finish([settle(job, JobState.AVAILABLE, delay=SECOND) for job in jobs], T0)
        assert numbers(await self.take(store)) == [2, 3]
        assert await self.take(store, at=T0 + SECOND) == []

    @needs("policies")
    async def test_more_turns_are_given_out_at_once_and_fewer_as_they_end(self, store: Backend) -> None:
        await self.put(store, *(row(n, group="g") for n in range(6)))
        first = await self.take(store)
        await self.turns(store, 3)
        more = await self.take(store)
        assert numbers(more) == [1, 2]
        await self.turns(store, 1)
        await store.finish([settle(job) for job in more], T0)
        assert await self.take(store) == []
        await store.finish([settle(job) for job in first], T0)
        assert numbers(await self.take(store)) == [3]

    @needs("policies")
    async def test_called_jobs_that_do_not_run_wait_again_when_there_are_fewer_turns(self, store: Backend) -> None:
        await self.turns(store, 3)
        await self.put(store, *(row(n, group="g") for n in range(4)))
        await self.turns(store, 1)
        assert numbers(await self.take(store)) == [0]

    @needs("policies")
    @pytest.mark.parametrize("first", ["fewer turns", "retries"])
    async def test_retries_wait_again_when_there_are_fewer_turns(self, store: Backend, first: str) -> None:
        await self.turns(store, 3)
        await self.put(store, *(row(n, group="g") for n in range(4)))
        jobs = await self.take(store)
        if first == "fewer turns":
            await self.turns(store, 1)
        await store.finish([settle(job, JobState.AVAILABLE, failed_attempt=True) for job in jobs], T0)
        if first == "retries":
            await self.turns(store, 1)
        assert len(await self.take(store)) == 1
        assert await self.take(store) == []

    @needs("policies")
    async def test_a_group_says_which_jobs_are_called(self, store: Backend) -> None:
        assert store.policies is not None
        await self.put(store, *(row(n, group="g") for n in range(4)))
        state = await store.policies.group("q", "g")
        assert (state.called, state.waiting) == ((job_id(0),), 3)
        await self.take(store)
        assert await self.called(store) == (job_id(0),)
        state = await store.policies.group("q", "other")
        assert (state.called, state.waiting) == ((), 0)
