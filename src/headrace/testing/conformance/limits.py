"""Limits, rates and pauses hold, and nobody waits behind a tenant or task that may not run."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from headrace.seam.policy import QueuePause, Rate, TenantLimit
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Beat,
    Reap,
    Row,
)
from headrace.testing.conformance.base import (
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    T0,
    needs,
    number,
    row,
    settle,
)
from headrace.testing.conformance.governed import GovernedBase
from headrace.types import JobState

_MANY = 3_000
"""More priorities than a claim looks at."""


class LimitTests(GovernedBase):
    # -- limits

    @needs("policies")
    async def test_a_queue_runs_no_more_than_its_limit(self, store: Backend) -> None:
        await self.govern(store, running=3)
        await self.put(store, *(row(n, tenant=f"t{n % 2}") for n in range(6)))
        claimed = await self.claim(store)
        assert (len(claimed.jobs), claimed.next_in) == (3, None)
        assert await self.got(store) == []
        await store.finish([settle(claimed.jobs[0])], T0)
        assert len(await self.got(store)) == 1
        await self.govern(store, running=None)
        assert len(await self.got(store)) == 2

    @needs("policies")
    async def test_a_tenant_at_its_limit_holds_up_nobody(self, store: Backend) -> None:
        await self.govern(store, tenant_running=2)
        await self.put(store, *(row(n, tenant="a") for n in range(5)), *(row(n, tenant="b") for n in range(5, 8)))
        assert sorted(await self.got(store)) == [0, 1, 5, 6]
        await self.put(store, row(8, tenant="a", delay=HOUR))
        await self.end(store, 0)
        assert await self.got(store) == [2]

    @needs("policies")
    async def test_a_tenant_may_have_a_limit_of_its_own(self, store: Backend) -> None:
        await self.govern(store, tenant_running=1)
        await self.policies(store).limit(TenantLimit("q", "big", 3), T0)
        await self.put(store, *(row(n, tenant="big") for n in range(5)), *(row(n, tenant="b") for n in range(5, 8)))
        assert sorted(await self.got(store)) == [0, 1, 2, 5]
        await self.policies(store).limit(TenantLimit("q", "big"), T0)
        await self.end(store, 0)
        assert await self.got(store) == []
        await self.end(store, 1, 2)
        assert await self.got(store) == [3]

    @needs("policies")
    async def test_a_lost_lease_makes_room_when_it_is_taken_back(self, store: Backend) -> None:
        await self.govern(store, running=1, tenant_running=1, tenant_workers=1)
        await self.put(store, row(1, tenant="a"), row(2, tenant="b"))
        assert await self.got(store, holder="dead") == [1]
        assert await self.got(store, at=T0 + LEASE) == []
        await store.reap(Reap(), T0 + LEASE)
        assert len(await self.got(store, at=T0 + LEASE)) == 1

    @needs("policies")
    async def test_a_refused_settlement_makes_no_room(self, store: Backend) -> None:
        await self.govern(store, running=1)
        await self.put(store, row(1), row(2))
        [job] = (await self.claim(store)).jobs
        stale = replace(settle(job), epoch=0)
        assert await store.finish([stale, settle(job, holder="w2")], T0) == [None, None]
        assert await self.got(store) == []
        assert await store.finish([settle(job), settle(job)], T0) == [JobState.COMPLETED, None]
        assert await self.got(store) == [2]

    # -- tokens

    @needs("policies")
    async def test_no_more_holders_than_allowed_have_jobs_of_a_tenant(self, store: Backend) -> None:
        await self.govern(store, tenant_workers=1, tenant_batch=2)
        await self.put(store, *(row(n, tenant="a") for n in range(6)), row(6, tenant="b"))
        assert await self.got(store, 2, holder="w1") == [0, 1]
        assert await self.got(store, holder="w2") == [6]
        assert await self.got(store, 1, holder="w1") == [2]
        await self.end(store, 0, 1)
        assert await self.got(store, holder="w2") == []
        await self.end(store, 2)
        assert await self.got(store, 2, holder="w2") == [3, 4]
        assert await self.got(store, holder="w1") == []
        await self.govern(store, tenant_workers=2)
        assert await self.got(store, holder="w1") == [5]

    @needs("policies")
    async def test_holders_from_before_the_rule_count(self, store: Backend) -> None:
        await self.put(store, *(row(n, tenant="a") for n in range(6)))
        assert await self.got(store, 1, holder="w1") == [0]
        await self.govern(store, tenant_workers=None, running=100)
        assert await self.got(store, 1, holder="w2") == [1]
        await self.govern(store, tenant_workers=1)
        assert await self.got(store, 1, holder="w3") == []
        await self.end(store, 1, holder="w2")
        assert await self.got(store, 1, holder="w3") == []
        assert await self.got(store, 1, holder="w1") == [2]
        await self.end(store, 0, 2, holder="w1")
        assert await self.got(store, 1, holder="w3") == [3]

    @needs("policies")
    async def test_a_tenant_that_others_have_keeps_its_turn(self, store: Backend) -> None:
        """Until one of its holders has nothing left of it, or the rule is gone."""
        await self.govern(store, tenant_workers=1, tenant_batch=1)
        await self.put(store, *(row(10 * n + k, tenant=f"t{n}") for n in range(3) for k in range(5)))
        assert await self.got(store, 1) == [0]
        assert await self.got(store, 4, holder="w2") == [10, 20, 11, 21]
        await self.end(store, 0)
        assert await self.got(store, 1, holder="w3") == [1]
        assert await self.got(store, 1) == []
        assert await self.got(store, 1, holder="w2") == [12]
        await self.govern(store, tenant_workers=None, running=100)
        assert await self.got(store, 4) == [2, 22, 3, 13]

    @needs("policies")
    async def test_more_holders_than_are_allowed_now_may_go_on(self, store: Backend) -> None:
        await self.govern(store, tenant_workers=3, tenant_batch=1)
        await self.put(store, *(row(n, tenant="a") for n in range(10)))
        holders = ("w1", "w2", "w3")
        assert [await self.got(store, 1, holder=one) for one in holders] == [[0], [1], [2]]
        assert await self.got(store, 1, holder="w4") == []
        await self.govern(store, tenant_workers=1)
        assert await self.got(store, 1, holder="w4") == []
        assert await self.got(store, 1, holder="w3") == [3]
        await self.end(store, 1, holder="w2")
        assert await self.got(store, 1, holder="w2") == []
        await self.end(store, 0)
        assert [await self.got(store, 1, holder=one) for one in ("w1", "w2", "w4")] == [[], [], []]
        await self.end(store, 2, 3, holder="w3")
        assert await self.got(store, 1, holder="w4") == [4]
        await self.govern(store, tenant_workers=2)
        assert [await self.got(store, 1, holder=one) for one in ("w1", "w2", "w4")] == [[5], [], [6]]

    @needs("policies")
    async def test_a_tenant_that_wakes_up_is_its_holders(self, store: Backend) -> None:
        await self.govern(store, tenant_workers=1, tenant_batch=1)
        await self.put(store, row(1, tenant="a"), row(2, tenant="a"))
        assert await self.got(store, 1) == [1]
        assert await self.got(store, 1, holder="w2") == []
        assert await self.got(store) == [2], "and it falls asleep"
        await self.put(store, row(3, tenant="a", delay=MINUTE), row(4, tenant="b"))
        assert await self.got(store, holder="w2") == [4]
        assert (await self.claim(store)).next_in == MINUTE
        later = T0 + MINUTE
        assert await self.got(store, at=later, holder="w2") == []
        assert await self.got(store, at=later) == [3]

    @needs("policies")
    async def test_of_several_queues_a_holder_gets_what_is_its_own(self, store: Backend) -> None:
        for queue in ("q", "r"):
            await self.govern(store, queue, tenant_workers=1, tenant_batch=1)
        await self.put(store, *(row(10 * n + k, queue=queue) for n, queue in enumerate("qrp") for k in range(3)))
        both = ("q", "r", "p")
        assert [number(job) for job in (await self.claim(store, 1)).jobs] == [0]
        jobs = (await self.claim(store, 4, holder="w2", queues=both)).jobs
        assert sorted(number(job) for job in jobs) == [10, 11, 20, 21]
        assert [number(job) for job in (await self.claim(store, 4, holder="w3", queues=both)).jobs] == [22]
        assert [number(job) for job in (await self.claim(store, 4, queues=both)).jobs] == [1, 2]
        assert [number(job) for job in (await self.claim(store, 4, holder="w2", queues=both)).jobs] == [12]

    @needs("policies")
    async def test_tokens_are_exclusive_under_concurrent_claims(self, store: Backend) -> None:
        await self.govern(store, tenant_workers=1, tenant_batch=1)
        await self.put(store, *(row(n, tenant=f"t{n % 5}") for n in range(50)))
        claims = await asyncio.gather(*(self.claim(store, 7, holder=f"w{n}") for n in range(6)))
        owners: dict[str, set[int]] = {}
        for worker, claimed in enumerate(claims):
            for job in claimed.jobs:
                owners.setdefault(job.tenant, set()).add(worker)
        assert all(len(workers) == 1 for workers in owners.values())

    # -- rates

    @needs("policies")
    async def test_a_queue_starts_jobs_at_its_rate(self, store: Backend) -> None:
        await self.govern(store, rate=Rate(SECOND, 3))
        await self.put(store, *(row(n, tenant=f"t{n % 2}") for n in range(9)))
        claimed = await self.claim(store)
        assert (len(claimed.jobs), claimed.next_in) == (3, SECOND)
        claimed = await self.claim(store, at=T0 + SECOND - 1)
        assert (claimed.jobs, claimed.next_in) == ([], 1)
        assert len((await self.claim(store, at=T0 + SECOND)).jobs) == 1
        assert len((await self.claim(store, at=T0 + 3 * SECOND)).jobs) == 2
        assert len((await self.claim(store, at=T0 + HOUR)).jobs) == 3

    @needs("policies")
    async def test_a_rate_is_spent_by_jobs_alone(self, store: Backend) -> None:
        await self.govern(store, rate=Rate(SECOND, 2), tenant_rate=Rate(SECOND, 2))
        for _ in range(5):
            assert await self.got(store) == []
        await self.put(store, row(1))
        assert await self.got(store) == [1]
        await self.put(store, row(2), row(3))
        assert await self.got(store) == [2]

    @needs("policies")
    async def test_a_tenant_over_its_rate_holds_up_nobody(self, store: Backend) -> None:
        await self.govern(store, tenant_rate=Rate(SECOND, 2))
        await self.policies(store).limit(TenantLimit("q", "slow", rate=Rate(HOUR)), T0)
        await self.put(store, *(row(n, tenant="a") for n in range(4)), *(row(n, tenant="b") for n in range(4, 6)))
        await self.put(store, row(6, tenant="slow"), row(7, tenant="slow"))
        claimed = await self.claim(store)
        assert (sorted(map(number, claimed.jobs)), claimed.next_in) == ([0, 1, 4, 5, 6], SECOND)
        [state] = await self.policies(store).tenants("q", ["slow"], at=T0)
        assert state.opens_at == T0 + HOUR
        assert await self.got(store, at=T0 + SECOND) == [2]
        assert await self.got(store, at=T0 + HOUR) == [3, 7]

    @needs("policies")
    async def test_a_task_over_its_rate_holds_up_no_other_task(self, store: Backend) -> None:
        await self.govern(store, task_rates={"slow": Rate(SECOND, 2)})
        await self.put(store, *(row(n, task="slow") for n in range(5)), *(row(n) for n in range(5, 8)))
        await self.put(store, row(8, tenant="b", task="slow"), row(9, tenant="b"))
        claimed = await self.claim(store)
        assert ([number(job) for job in claimed.jobs], claimed.next_in) == ([0, 1, 5, 6, 7, 9], SECOND)
        [found] = await self.policies(store).find(["q"], T0)
        assert found.opens_at == {"slow": T0 + SECOND}
        assert await self.got(store, at=T0 + SECOND) in ([2], [8])

    @needs("policies")
    async def test_a_changed_rate_starts_over(self, store: Backend) -> None:
        await self.govern(store, rate=Rate(HOUR))
        await self.put(store, *(row(n) for n in range(5)))
        assert await self.got(store) == [0]
        await self.govern(store, rate=Rate(SECOND, 2))
        assert await self.got(store) == [1, 2]
        await self.govern(store, running=100)
        assert await self.got(store) == []
        await self.govern(store, rate=None)
        assert await self.got(store) == [3, 4]

    @needs("policies")
    async def test_a_clock_that_steps_back_opens_no_rate(self, store: Backend) -> None:
        await self.govern(store, rate=Rate(SECOND))
        await self.put(store, row(1), row(2))
        assert await self.got(store) == [1]
        claimed = await self.claim(store, at=T0 - MINUTE)
        assert claimed.jobs == []
        assert await self.got(store, at=T0 + SECOND) == [2]

    # -- pauses

    @needs("policies")
    async def test_a_paused_tenant_holds_up_nobody(self, store: Backend) -> None:
        await self.put(store, *(row(n, tenant="ab"[n % 2]) for n in range(6)))
        await self.policies(store).pause(QueuePause("q", tenant="a"), T0)
        claimed = await self.claim(store)
        assert ([number(job) for job in claimed.jobs], claimed.next_in) == ([1, 3, 5], None)
        await self.policies(store).pause(QueuePause("q", tenant="a", paused=False), T0)
        assert await self.got(store) == [0, 2, 4]

    @needs("policies")
    async def test_a_task_that_is_resumed_has_kept_its_place(self, store: Backend) -> None:
        """Jobs that were passed over come first again, together with those that came meanwhile."""
        await self.put(store, *(row(n, task="tu"[n % 2]) for n in range(6)))
        await self.policies(store).pause(QueuePause("q", task="u"), T0)
        assert await self.got(store, 2) == [0, 2]
        await self.put(store, row(6, task="u"), row(7, priority=-1, task="u"))
        assert await self.got(store, 1) == [4]
        assert await self.got(store, 1) == []
        await self.policies(store).pause(QueuePause("q", task="u", paused=False), T0)
        assert await self.got(store) == [7, 1, 3, 5, 6]

    @needs("policies")
    async def test_delayed_jobs_of_a_paused_task_wake_nobody(self, store: Backend) -> None:
        await self.put(store, row(1, task="u", delay=SECOND), row(2, task="u", delay=3 * SECOND))
        await self.put(store, row(3, delay=5 * SECOND))
        await self.policies(store).pause(QueuePause("q", task="u", lasts=2 * SECOND), T0)
        claimed = await self.claim(store)
        assert (claimed.jobs, claimed.next_in) == ([], 2 * SECOND)
        assert await self.got(store, at=T0 + 2 * SECOND) == [1]
        assert await self.got(store, at=T0 + 6 * SECOND) == [2, 3]

    @needs("policies")
    async def test_many_jobs_of_a_paused_task_hold_up_nobody(self, store: Backend) -> None:
        """However many lie before: what may run is found, if not by the first claim, then by one of the next."""
        await self.put(store, *(row(n, task="u") for n in range(1_000)))
        await self.put(store, *(row(n, task="u") for n in range(1_000, 2_000)))
        await self.put(store, row(2_000), row(2_001, task="u"), row(2_002))
        await self.policies(store).pause(QueuePause("q", task="u"), T0)
        found = []
        for _ in range(10):
            claimed = await self.claim(store, 10)
            found += [number(job) for job in claimed.jobs]
            if claimed.next_in != 0:
                break
        assert (found, claimed.next_in) == ([2_000, 2_002], None)

    @needs("policies")
    @pytest.mark.parametrize("rated", [True, False])
    async def test_a_closed_task_of_very_many_priorities_holds_up_nobody(self, store: Backend, rated: bool) -> None:
        """Neither other tenants, nor the other tasks of its tenant: they are found, if not by the first claim, then by
        one of the next. Then claims come to rest, and when the task opens, its jobs come in their order."""
        if rated:
            await self.govern(store, task_rates={"u": Rate(HOUR)})
        else:
            await self.policies(store).pause(QueuePause("q", task="u"), T0)
        for first in range(0, _MANY, 1_000):
            await self.put(store, *(row(n, tenant="a", task="u", priority=n) for n in range(first, first + 1_000)))
        others = [*range(_MANY, _MANY + 10)]
        await self.put(store, *(row(n, tenant="b", priority=_MANY) for n in others))
        await self.put(store, row(_MANY + 10, tenant="a", priority=_MANY))
        started = 1 if rated else 0
        found: list[int] = []
        for _ in range(5):
            found += await self.got(store, 10)
        assert [n for n in found if n in others] == others
        at = T0
        for _ in range(20):
            claimed = await self.claim(store, 10, at)
            found += map(number, claimed.jobs)
            if claimed.next_in is None or claimed.next_in > MINUTE:
                break
            at += claimed.next_in
        assert sorted(found) == [*range(started), *others, _MANY + 10]
        assert claimed.next_in == (T0 + HOUR - at if rated else None)
        assert at < T0 + SECOND
        if rated:
            assert await self.got(store, 10, T0 + HOUR) == [1]
            await self.govern(store, at=T0 + HOUR, task_rates={})
            started = 2
        else:
            await self.policies(store).pause(QueuePause("q", task="u", paused=False), at)
        rest: list[int] = []
        while len(rest) < _MANY - started:
            more = await self.got(store, 1_000, T0 + HOUR)
            assert more
            rest += more
        assert rest == [*range(started, _MANY)]

    @needs("policies")
    async def test_a_paused_task_holds_up_nobody(self, store: Backend) -> None:
        await self.put(store, *(row(n, task="tu"[n % 2], tenant=f"t{n % 3}") for n in range(6)))
        await self.policies(store).pause(QueuePause("q", task="u"), T0)
        claimed = await self.claim(store)
        assert (sorted(map(number, claimed.jobs)), claimed.next_in) == ([0, 2, 4], None)
        [found] = await self.policies(store).find(["q"], T0)
        assert list(found.paused_tasks) == ["u"]
        await self.policies(store).pause(QueuePause("q", task="u", paused=False), T0)
        assert sorted(await self.got(store)) == [1, 3, 5]

    @needs("policies")
    async def test_a_pause_may_end_by_itself(self, store: Backend) -> None:
        await self.put(store, row(1, tenant="a"), row(2, tenant="b", task="u"))
        await self.policies(store).pause(QueuePause("q", tenant="a", lasts=SECOND), T0)
        await self.policies(store).pause(QueuePause("q", task="u", lasts=2 * SECOND), T0)
        claimed = await self.claim(store)
        assert (claimed.jobs, claimed.next_in) == ([], SECOND)
        assert await self.got(store, at=T0 + SECOND) == [1]
        assert await self.got(store, at=T0 + 2 * SECOND) == [2]
        [found] = await self.policies(store).find(["q"], T0 + 2 * SECOND)
        assert found.paused_tasks == {}

    @needs("policies")
    async def test_so_may_the_pause_of_a_queue(self, store: Backend) -> None:
        await self.put(store, row(1))
        await self.policies(store).pause(QueuePause("q", lasts=SECOND), T0)
        claimed = await self.claim(store)
        assert (claimed.jobs, claimed.next_in) == ([], SECOND)
        [queue] = (await store.stats(T0)).queues
        assert (queue.paused, queue.paused_until) == (True, T0 + SECOND)
        assert list((await store.renew(Beat("w1", "w", ("q",), LEASE), T0)).paused) == ["q"]
        assert list((await store.renew(Beat("w1", "w", ("q",), LEASE), T0 + SECOND)).paused) == []
        [queue] = (await store.stats(T0 + SECOND)).queues
        assert (queue.paused, queue.paused_until) == (False, None)
        assert await self.got(store, at=T0 + SECOND) == [1]

    # -- all at once, several queues

    @needs("policies")
    async def test_all_limits_hold_at_once_and_nobody_waits_for_nothing(self, store: Backend) -> None:
        await self.govern(
            store, running=8, rate=Rate(SECOND, 7), tenant_running=3, task_rates={"slow": Rate(SECOND)}, tenant_batch=2
        )
        await self.policies(store).limit(TenantLimit("q", "b", 1), T0)
        await self.policies(store).pause(QueuePause("q", tenant="c"), T0)
        await self.put(store, *(row(n, tenant="a", task="slow", group="g") for n in range(3)))
        await self.put(store, *(row(n, tenant="a", task="slow") for n in range(3, 6)))
        await self.put(store, *(row(n, tenant="a", priority=1) for n in range(6, 12)))
        await self.put(store, *(row(n, tenant="b") for n in range(12, 16)))
        await self.put(store, *(row(n, tenant="c") for n in range(16, 20)))
        await self.put(store, *(row(n, tenant="d", group="g2") for n in range(20, 24)))
        claimed = await self.claim(store)
        assert ([number(job) for job in claimed.jobs], claimed.next_in) == ([0, 6, 12, 20, 7], None)
        assert await self.got(store, at=T0 + SECOND) == []
        await self.end(store, 0, 20, at=T0 + SECOND)
        assert sorted(await self.got(store, at=T0 + SECOND)) == [1, 21]

    @needs("policies", "strict_order")
    async def test_several_queues_share_a_claim(self, store: Backend) -> None:
        await self.govern(store, "q")
        await self.govern(store, "r", running=1)
        rows: list[Row] = [row(n, queue="qrst"[n % 4]) for n in range(40)]
        await self.put(store, *rows)
        claimed = await self.claim(store, 9, queues=("q", "r", "s", "t"))
        assert [number(job) for job in claimed.jobs] == [0, 4, 8, 1, 2, 3, 6, 7, 10]
        claimed = await self.claim(store, 1, queues=("s", "t", "q", "r"))
        assert [number(job) for job in claimed.jobs] == [11]
        claimed = await self.claim(store, 100, queues=("r", "q", "t", "s"))
        assert len(claimed.jobs) == 29 - 8
        assert Counter(job.queue for job in claimed.jobs) == {"q": 7, "s": 7, "t": 7}
