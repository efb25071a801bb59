"""Policies: they are stored as they are, and the tenants of a governed queue take turns."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from headrace.seam.policy import Policy, PolicyState, QueuePause, Rate, TenantLimit, TenantState
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Beat,
    Cancel,
    Pause,
    Reap,
    Requeue,
    Selector,
    SweepClause,
    SweepTarget,
    Swept,
)
from headrace.testing.conformance.base import (
    HOSTILE,
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    T0,
    job_id,
    needs,
    number,
    row,
    settle,
)
from headrace.testing.conformance.governed import GovernedBase
from headrace.types import JobState


class PolicyTests(GovernedBase):
    # -- save, limit, find

    @needs("policies")
    async def test_a_policy_is_stored_as_it_is(self, store: Backend) -> None:
        given = Policy(
            queue="q",
            running=7,
            rate=Rate(10, 3),
            tenant_running=2,
            tenant_rate=Rate(20, 4),
            task_rates={"t": Rate(30, 5), "u": Rate(40)},
            tenant_workers=3,
            tenant_batch=4,
            ageing=MINUTE,
            group_running=2,
            depth=1_000,
        )
        assert await self.policies(store).save(given, T0)
        assert await self.policies(store).find(at=T0) == [PolicyState(replace(given, version=1), True)]
        assert await self.policies(store).save(Policy(queue="q", version=1), T0)
        assert await self.policies(store).find(at=T0) == [PolicyState(Policy(queue="q", version=2), True)]

    @needs("policies")
    async def test_of_two_saves_of_one_version_one_succeeds(self, store: Backend) -> None:
        policy = Policy(queue="q", running=1)
        answers = await asyncio.gather(*(self.policies(store).save(policy, T0) for _ in range(5)))
        assert sorted(answers) == [False] * 4 + [True]
        assert not await self.policies(store).save(replace(policy, version=2), T0)
        [found] = await self.policies(store).find(["q"], T0)
        assert found.policy == replace(policy, version=1)

    @needs("policies")
    async def test_policies_are_found_by_name(self, store: Backend) -> None:
        for queue in ("b", "a", "é", "c"):
            assert await self.policies(store).save(Policy(queue=queue, depth=1), T0)
        found = await self.policies(store).find(at=T0)
        assert [(one.policy.queue, one.governed) for one in found] == [(name, False) for name in ("a", "b", "c", "é")]
        assert [one.policy.queue for one in await self.policies(store).find(["c", "x", "a"], T0)] == ["a", "c"]

    @needs("policies")
    @pytest.mark.parametrize("name", HOSTILE)
    async def test_any_text_names_a_queue_a_tenant_or_a_task(self, store: Backend, name: str) -> None:
        policy = Policy(queue=name, tenant_running=1, task_rates={name: Rate(SECOND)})
        assert await self.policies(store).save(policy, T0)
        await self.put(store, *(row(n, queue=name, tenant=name, task=name) for n in range(3)))
        [job] = (await self.claim(store, queues=(name,))).jobs
        assert (job.queue, job.tenant, job.task) == (name, name, name)
        [tenant] = await self.policies(store).tenants(name, at=T0)
        assert tenant == TenantState(name, name, 2, 1)

    @needs("policies")
    async def test_tenants_are_told_in_numbers(self, store: Backend) -> None:
        await self.govern(store)
        await store.renew(Beat("w1", "alice", ("q",), LEASE), T0)
        await self.put(store, *(row(n, tenant="ab"[n % 2]) for n in range(6)), row(6, tenant="c"))
        await self.claim(store, 3)
        await self.policies(store).limit(TenantLimit("q", "b", 5), T0)
        await self.policies(store).limit(TenantLimit("q", "d", rate=Rate(9)), T0)
        await self.policies(store).pause(QueuePause("q", tenant="e", lasts=HOUR), T0)
        found = {one.tenant: one for one in await self.policies(store).tenants("q", at=T0)}
        assert found["a"] == TenantState("q", "a", 0, 3, workers=("alice",))
        assert found["b"] == TenantState("q", "b", 3, 0, TenantLimit("q", "b", 5))
        assert found["c"] == TenantState("q", "c", 1)
        assert found["d"] == TenantState("q", "d", limit=TenantLimit("q", "d", rate=Rate(9)))
        assert found["e"] == TenantState("q", "e", paused_until=T0 + HOUR)
        some = await self.policies(store).tenants("q", after="a", limit=2, at=T0)
        assert [one.tenant for one in some] == ["b", "c"]
        await self.put(store, row(7, tenant=""))
        pages = [
            [one.tenant for one in await self.policies(store).tenants("q", after=above, limit=1, at=T0)]
            for above in (None, "", "d", "e")
        ]
        assert pages == [[""], ["a"], ["e"], []]
        some = await self.policies(store).tenants("q", ["e", "a", "x"], at=T0)
        assert [one.tenant for one in some] == ["a", "e"]
        assert await self.policies(store).tenants("other", at=T0) == []

    # -- turns

    @needs("policies")
    async def test_tenants_take_turns_batch_by_batch(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=2)
        await self.put(store, *(row(n, tenant="a") for n in range(6)), row(6, tenant="b"), row(7, tenant="b"))
        await self.put(store, row(8, tenant="b"), row(9, tenant="c"), at=T0)
        assert await self.got(store) == [0, 1, 6, 7, 9, 2, 3, 8, 4, 5]

    @needs("policies")
    async def test_a_tenants_batch_has_a_size_if_the_policy_names_none(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=None, running=1_000)
        await self.put(store, *(row(n, tenant="ab"[n // 12]) for n in range(24)))
        assert await self.got(store) == [*range(10), *range(12, 22), 10, 11, 22, 23]

    @needs("policies")
    async def test_turns_go_on_from_claim_to_claim(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=1)
        await self.put(store, *(row(n, tenant="abc"[n // 4]) for n in range(12)))
        claims = [await self.got(store, 1) for _ in range(12)]
        assert [n for one in claims for n in one] == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]

    @needs("policies")
    async def test_a_newcomer_enters_at_the_current_round(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=1)
        await self.put(store, *(row(n, tenant="a") for n in range(20)))
        await self.claim(store, 10)
        await self.put(store, *(row(n, tenant="b") for n in range(20, 30)))
        shares = Counter("ab"[n >= 20] for n in await self.got(store, 10))
        assert 4 <= shares["a"] <= 6

    @needs("policies")
    async def test_who_comes_back_at_once_gains_nothing(self, store: Backend) -> None:
        """One job at a time, always there again in time for the next claim."""
        await self.govern(store, tenant_batch=1)
        await self.put(store, *(row(n, tenant="heavy") for n in range(30)))
        shares: Counter[str] = Counter()
        for n in range(100, 120):
            await self.put(store, row(n, tenant="quick"))
            [job] = (await self.claim(store, 1)).jobs
            shares[job.tenant] += 1
        assert abs(shares["heavy"] - shares["quick"]) <= 2

    @needs("policies")
    async def test_who_was_given_more_comes_later(self, store: Backend) -> None:
        await self.ahead(store, "a")
        await self.put(store, row(10, tenant="a"), row(11, tenant="b"))
        assert await self.got(store, 1) == [11]

    @needs("policies")
    async def test_who_has_no_jobs_is_forgotten_by_a_sweep(self, store: Backend) -> None:
        await self.ahead(store, "a")
        clause = SweepClause(target=SweepTarget.TENANTS)
        assert await store.sweep(replace(clause, dry_run=True), T0) == Swept(1, 0, 0, False)
        assert await store.sweep(clause, T0) == Swept(1, 0, 0, False)
        assert await store.sweep(clause, T0) == Swept(0, 0, 0, False)
        assert await self.policies(store).tenants("q", at=T0) == []
        await self.put(store, row(10, tenant="a"), row(11, tenant="b"))
        assert await self.got(store, 1) == [10]

    @needs("policies")
    async def test_who_has_jobs_is_not_forgotten(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=2)
        await self.put(store, *(row(n, tenant="a") for n in range(4)), row(4, tenant="c"), row(5, tenant="c"))
        assert await self.got(store, 3) == [0, 1, 4]
        await self.end(store, 0, 1)
        assert (await store.sweep(SweepClause(target=SweepTarget.TENANTS), T0)).removed == 0
        await self.put(store, row(10, tenant="b"))
        assert await self.got(store) == [10, 5, 2, 3]

    @needs("policies")
    async def test_many_are_forgotten_bit_by_bit(self, store: Backend) -> None:
        await self.govern(store)
        await self.put(store, *(row(n, tenant=f"tenant-{n}") for n in range(10)))
        await self.end(store, *await self.got(store))
        gone, more = 0, True
        while more:
            swept = await store.sweep(SweepClause(target=SweepTarget.TENANTS, limit=3), T0)
            assert swept.removed <= 3
            gone, more = gone + swept.removed, swept.more
        assert gone > 0
        assert await self.policies(store).tenants("q", at=T0) == []

    @needs("policies")
    async def test_who_spent_a_rate_is_forgotten_when_it_is_saved_up(self, store: Backend) -> None:
        await self.govern(store, tenant_rate=Rate(MINUTE))
        await self.put(store, row(0, tenant="a"))
        await self.end(store, *await self.got(store))
        clause = SweepClause(target=SweepTarget.TENANTS)
        assert (await store.sweep(clause, T0 + MINUTE - 1)).removed == 0
        await self.put(store, row(1, tenant="a"), at=T0 + MINUTE - 1)
        assert (await self.claim(store, at=T0 + MINUTE - 1)).next_in == 1
        await self.end(store, *await self.got(store, at=T0 + MINUTE), at=T0 + MINUTE)
        await store.sweep(clause, T0 + 2 * MINUTE)
        assert await self.policies(store).tenants("q", at=T0 + 2 * MINUTE) == []

    @needs("policies")
    async def test_what_was_set_for_a_tenant_outlasts_its_jobs(self, store: Backend) -> None:
        await self.ahead(store, "a")
        limit = TenantLimit("q", "a", 3)
        await self.policies(store).limit(limit, T0)
        assert (await store.sweep(SweepClause(target=SweepTarget.TENANTS), T0)).removed == 1
        assert await self.policies(store).tenants("q", at=T0) == [TenantState("q", "a", limit=limit)]
        await self.put(store, row(10, tenant="a"), row(11, tenant="b"))
        assert await self.got(store, 1) == [10]

    @needs("policies")
    async def test_of_those_with_the_same_count_the_earliest_due_comes_first(self, store: Backend) -> None:
        await self.govern(store)
        await self.put(store, row(1, tenant="a", delay=3), row(2, tenant="b", delay=1), row(3, tenant="c", delay=2))
        assert await self.got(store, at=T0 + 5) == [2, 3, 1]

    @needs("policies")
    async def test_within_a_tenant_the_order_is_priority_then_run_at_then_id(self, store: Backend) -> None:
        await self.govern(store)
        spec = [(1, 0, 30), (2, 0, 10), (3, 5, 0), (4, -5, 50), (5, 0, 10), (6, -5, 40), (7, 32_767, 0)]
        await self.put(store, *(row(n, task=f"t{n % 3}", priority=p, delay=d) for n, p, d in spec))
        expected = [n for n, _, _ in sorted(spec, key=lambda s: (s[1], s[2], s[0]))]
        assert await self.got(store, at=T0 + 60) == expected

    @needs("policies")
    async def test_a_limit_or_a_pause_of_one_tenant_wakes_no_other(self, store: Backend) -> None:
        await self.govern(store)
        await self.put(store, row(1, tenant="a", delay=3), row(2, tenant="b", delay=1))
        await self.policies(store).limit(TenantLimit("q", "c", 3), T0)
        for paused in (True, False):
            await self.policies(store).pause(QueuePause("q", tenant="c", paused=paused), T0)
        assert await self.got(store, at=T0 + 5) == [2, 1]

    @needs("policies")
    async def test_of_many_priorities_the_order_holds(self, store: Backend) -> None:
        await self.govern(store)
        await self.put(store, *(row(n, tenant="a", task=f"t{n % 3}", priority=(n * 7_919) % 997) for n in range(600)))
        await self.put(store, *(row(n, tenant="a", priority=n - 9_999, delay=MINUTE) for n in range(1_000, 1_300)))
        found = await self.got(store, 350) + await self.got(store, 350)
        assert found == sorted(range(600), key=lambda n: ((n * 7_919) % 997, n))
        assert await self.got(store, 500, at=T0 + MINUTE) == [*range(1_000, 1_300)]

    @needs("policies")
    async def test_when_a_great_many_become_due_at_once_no_tenant_is_left(self, store: Backend) -> None:
        await self.govern(store)
        rows = [row(n, tenant="ab"[n % 8 == 0], task=f"t{n % 3}", priority=-n, delay=SECOND) for n in range(2_400)]
        for start in range(0, 2_400, 800):
            await self.put(store, *rows[start : start + 800])
        await self.put(store, row(9_000, tenant="b", delay=2 * SECOND))
        found: list[int] = []
        for _ in range(20):
            claimed = await self.claim(store, 700, T0 + SECOND, max_bytes=1 << 30)
            found += map(number, claimed.jobs)
            if len(claimed.jobs) < 700 and claimed.next_in != 0:
                break
        assert claimed.next_in == SECOND
        assert sorted(found) == [*range(2_400)]

    @needs("policies")
    async def test_with_ageing_too_all_priorities_get_their_turn(self, store: Backend) -> None:
        await self.govern(store, ageing=SECOND, tenant_batch=7)
        await self.put(store, *(row(n, tenant="t", priority=n) for n in range(300)))
        found: list[int] = []
        for _ in range(3):
            found += await self.got(store)
        assert sorted(found) == [*range(300)]

    @needs("policies")
    async def test_with_ageing_waiting_makes_up_for_priority(self, store: Backend) -> None:
        await self.govern(store, ageing=SECOND)
        await self.put(store, row(1, priority=3), row(2, priority=0, delay=2 * SECOND), row(3, delay=4 * SECOND))
        await self.put(store, row(4, priority=1, delay=2 * SECOND), row(5, priority=-2, delay=4 * SECOND))
        assert await self.got(store, at=T0 + MINUTE) == [2, 5, 1, 4, 3]

    @needs("policies")
    async def test_jobs_that_waited_before_there_were_rules_take_part(self, store: Backend) -> None:
        await self.put(store, *(row(n, tenant="a") for n in range(5)), *(row(n, tenant="b") for n in range(5, 8)))
        await self.govern(store, tenant_batch=1)
        assert await self.got(store, 6) == [0, 5, 1, 6, 2, 7]
        assert await self.got(store) == [3, 4]

    @needs("policies")
    async def test_jobs_that_ran_before_there_were_rules_count(self, store: Backend) -> None:
        await self.put(store, *(row(n, tenant="a") for n in range(5)))
        await self.claim(store, 2)
        await self.govern(store, running=3, tenant_running=3)
        assert await self.got(store) == [2]
        await self.end(store, 0, 1)
        assert await self.got(store) == [3, 4]

    @needs("policies")
    async def test_a_queue_without_rules_any_more_still_takes_turns(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=1, running=1)
        await self.govern(store, running=None, tenant_workers=None)
        await self.put(store, *(row(n, tenant="ab"[n // 3]) for n in range(6)))
        assert await self.got(store) == [0, 3, 1, 4, 2, 5]

    @needs("policies")
    async def test_every_way_back_into_the_queue_leads_to_a_turn(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=1)
        await self.put(store, *(row(n, tenant=f"t{n}") for n in range(6)), row(6, queue="r", tenant="t6"))
        jobs = {number(job): job for job in (await self.claim(store, 4)).jobs}
        await store.finish([settle(jobs[0], JobState.AVAILABLE), settle(jobs[1], JobState.AVAILABLE, delay=5)], T0)
        await store.finish([settle(jobs[2], JobState.FAILED)], T0)
        await store.alter(Selector(ids=[job_id(2)]), Requeue(), T0)
        await store.alter(Selector(ids=[job_id(4)]), Pause(), T0)
        await store.alter(Selector(ids=[job_id(5)]), Cancel(), T0)
        assert sorted(await self.got(store)) == [0, 2]
        assert (await self.claim(store)).next_in == 5
        assert await self.got(store, at=T0 + 5) == [1]
        await store.reap(Reap(), T0 + LEASE)
        assert sorted(await self.got(store, at=T0 + LEASE)) == [0, 2, 3]

    @needs("policies")
    async def test_a_tenant_that_has_nothing_due_says_when_it_will(self, store: Backend) -> None:
        await self.govern(store)
        await self.put(store, row(1, tenant="a", delay=SECOND), row(2, tenant="b", delay=2 * SECOND))
        claimed = await self.claim(store)
        assert (claimed.jobs, claimed.next_in) == ([], SECOND)
        assert await self.got(store, at=T0 + SECOND) == [1]

    @needs("policies")
    async def test_expired_jobs_are_cancelled_on_the_way(self, store: Backend) -> None:
        await self.govern(store)
        await self.put(
            store, row(1, tenant="a", expires=SECOND), row(2, tenant="a"), row(3, tenant="b", expires=SECOND)
        )
        claimed = await self.claim(store, at=T0 + SECOND)
        assert [number(job) for job in claimed.jobs] == [2]
        assert sorted(one.id for one in claimed.expired) == [job_id(1), job_id(3)]

    @needs("policies")
    async def test_jobs_on_their_last_chance_are_passed_over(self, store: Backend) -> None:
        await self.govern(store)
        await self.put(store, row(1, tenant="a"), row(2, tenant="b"))
        await self.claim(store, 1)
        await store.reap(Reap(), T0 + LEASE)
        claimed = await self.claim(store, at=T0 + LEASE, lost_below=1)
        assert ([number(job) for job in claimed.jobs], claimed.passed_over) == ([2], True)
        assert await self.got(store, at=T0 + LEASE) == [1]

    @needs("policies")
    async def test_large_jobs_of_tenants_come_a_few_at_a_time(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=1)
        await self.put(store, *(row(n, tenant="ab"[n % 2], cells={"blob": bytes(100_000)}) for n in range(4)))
        claimed = await self.claim(store, max_bytes=150_000)
        assert ([number(job) for job in claimed.jobs], claimed.next_in) == ([0, 1], 0)
        assert await self.got(store) == [2, 3]

    @needs("policies", "weighs_wanted")
    async def test_what_is_not_wanted_of_tenants_weighs_nothing(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=2)
        cells = {"parameters": b"{}", "metadata": bytes(40_000), "blob": bytes(100_000)}
        await self.put(store, *(row(n, tenant="ab"[n % 2], cells=cells) for n in range(12)))
        claimed = await self.claim(store, want=frozenset(("parameters",)), limit=5, max_bytes=150_000)
        assert len(claimed.jobs) == 5
        claimed = await self.claim(store, want=frozenset(("metadata",)), max_bytes=150_000)
        assert (len(claimed.jobs), claimed.next_in) == (4, 0)
        claimed = await self.claim(store, max_bytes=150_000)
        assert (len(claimed.jobs), claimed.next_in) == (2, 0)

    @needs("policies")
    async def test_one_of_many_concurrent_claims_gets_each_job(self, store: Backend) -> None:
        await self.govern(store, tenant_batch=3)
        await self.put(store, *(row(n, tenant=f"t{n % 7}") for n in range(100)))
        claims = await asyncio.gather(*(self.got(store, 9, holder=f"w{n}") for n in range(12)))
        assert sorted(n for one in claims for n in one) == list(range(100))
