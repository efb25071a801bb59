"""claim: eligibility, order, exclusiveness, expiry, wanted sections."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from msgspec.structs import replace

from headrace.seam.policy import Policy, QueuePause
from headrace.seam.protocol import Backend
from headrace.seam.records import CARRIED, Claim, Leased, Pause, Reap, Reaped, Reschedule, Resume, Selector, carried
from headrace.testing.conformance.base import (
    LEASE,
    MINUTE,
    OPTIONS,
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


class ClaimTests(ConformanceBase):
    async def test_an_empty_store_gives_nothing_and_knows_of_nothing_to_come(self, store: Backend) -> None:
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0)
        assert (claimed.jobs, claimed.next_in, list(claimed.expired)) == ([], None, [])

    async def test_a_claimed_job_is_running_under_a_new_epoch(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        assert (job.id, job.epoch, job.attempt, job.lost, job.begun) == (job_id(1), T0, 0, 0, False)
        record = await self.get(store, 1)
        assert (record.state, record.epoch, record.lease_until) == (JobState.RUNNING, T0, T0 + LEASE)
        assert await self.take(store) == []

    async def test_a_leased_job_carries_every_field(self, store: Backend) -> None:
        given = row(
            1, tenant="acme", key="k", priority=2, headers=b"h", cells={"parameters": b"p", "blob": b"b"}, **OPTIONS
        )  # fmt: skip
        await self.put(store, given)
        job = await self.take_one(store, at=T0 + 7)
        assert (job.queue, job.task, job.tenant, job.key, job.priority) == ("q", "t", "acme", "k", 2)
        assert (carried(job), job.headers) == (tuple(OPTIONS.values()), b"h")
        assert (job.run_at, job.enqueued_at, job.cells, job.error) == (T0, T0, given.cells, None)

    @pytest.mark.parametrize("group", [None, "g"])
    async def test_each_option_is_carried_alone(self, store: Backend, group: str | None) -> None:
        rows = [row(n, group=group and f"{group}{n}", **{name: OPTIONS[name]}) for n, name in enumerate(CARRIED)]
        await self.put(store, *rows)
        assert [(job.group, carried(job)) for job in await self.take(store)] == [(r.group, carried(r)) for r in rows]

    @needs("policies")
    async def test_options_are_carried_in_a_governed_queue_too(self, store: Backend) -> None:
        assert await self.policies(store).save(Policy(queue="q", tenant_batch=10), T0)
        await self.put(store, row(1, tenant="acme", **OPTIONS))
        assert carried(await self.take_one(store)) == tuple(OPTIONS.values())

    async def test_order_is_priority_then_run_at_then_id(self, store: Backend) -> None:
        spec = [
            (1, 0, 30), (2, 0, 10), (3, 5, 0), (4, -5, 50), (5, 0, 10), (6, -5, 40), (7, 32_767, 0), (8, -32_768, 60),
        ]  # fmt: skip
        await self.put(store, *(row(n, priority=p, delay=d) for n, p, d in spec))
        expected = [job_id(n) for n, _, _ in sorted(spec, key=lambda s: (s[1], s[2], s[0]))]
        assert [j.id for j in await self.take(store, at=T0 + 60)] == expected

    @needs("strict_order")
    async def test_order_holds_across_queues_and_calls(self, store: Backend) -> None:
        spec = [(n, "abc"[n % 3], (n * 7) % 4, (n * 5) % 6) for n in range(30)]
        await self.put(store, *(row(n, queue=q, priority=p, delay=d) for n, q, p, d in spec))
        expected = [job_id(n) for n, _, _, _ in sorted(spec, key=lambda s: (s[2], s[3], s[0]))]
        claims = [await self.take(store, 4, queues=("a", "b", "c"), at=T0 + 10) for _ in range(8)]
        assert [j.id for jobs in claims for j in jobs] == expected

    async def test_fifo_within_one_insert(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(50)))
        assert [j.id for j in await self.take(store)] == [job_id(n) for n in range(50)]

    async def test_only_the_queues_named_are_looked_at(self, store: Backend) -> None:
        await self.put(store, row(1, queue="a"), row(2, queue="b"), row(3, queue="c"))
        assert [j.id for j in await self.take(store, queues=("a", "c", "a"))] == [job_id(1), job_id(3)]
        assert await self.take(store, queues=()) == []

    async def test_the_limit_holds(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(5)))
        assert len(await self.take(store, 2)) == 2
        assert len(await self.take(store, 0)) == 0
        assert len(await self.take(store, 100)) == 3

    async def test_large_jobs_come_a_few_at_a_time(self, store: Backend) -> None:
        """The one that reaches the bound is the last; what is left is due at once, in its order."""
        await self.put(store, *(row(n, queue="ab"[n % 2], cells={"blob": bytes(100_000)}) for n in range(6)))
        await self.put(store, row(6, queue="a", priority=1, cells={"blob": bytes(100_000)}))
        found: list[list[int]] = []
        for _ in range(3):
            claimed = await store.claim(Claim("w1", ("a", "b"), 10, LEASE, max_bytes=250_000), T0)
            found.append([int.from_bytes(job.id[2:8]) for job in claimed.jobs])
            assert claimed.next_in == (0 if len(found) < 3 else None)
        assert found == [[0, 1, 2], [3, 4, 5], [6]]

    @needs("weighs_wanted")
    async def test_what_is_not_wanted_weighs_nothing(self, store: Backend) -> None:
        small, large = b"{}", bytes(100_000)
        await self.put(store, *(row(n, cells={"parameters": small, "blob": large}) for n in range(8)))
        first = await store.claim(Claim("w1", ("q",), 9, LEASE, frozenset(("parameters",)), max_bytes=250_000), T0)
        assert ([number(job) for job in first.jobs], first.next_in) == (list(range(8)), None)
        replaced = {"parameters": large, "blob": small, "vm_state": large}
        again = [settle(job, JobState.AVAILABLE, delay=None, cells=replaced) for job in first.jobs[:6]]
        await store.finish([*again, *(settle(job) for job in first.jobs[6:])], T0)
        heavy = await store.claim(Claim("w1", ("q",), 9, LEASE, frozenset(("parameters",)), max_bytes=250_000), T0)
        assert ([number(job) for job in heavy.jobs], heavy.next_in) == ([0, 1, 2], 0)
        light = await store.claim(Claim("w1", ("q",), 9, LEASE, frozenset(("blob",)), max_bytes=250_000), T0)
        assert ([number(job) for job in light.jobs], light.next_in) == ([3, 4, 5], None)
        assert [job.cells for job in light.jobs] == [{"blob": small}] * 3

    @needs("weighs_wanted")
    async def test_what_is_not_wanted_weighs_nothing_in_several_queues(self, store: Backend) -> None:
        cells = {"metadata": bytes(30_000), "blob": bytes(100_000)}
        await self.put(store, *(row(n, queue="ab"[n % 2], cells=cells) for n in range(8)))
        for expected in ([0, 1, 2, 3], [4, 5, 6, 7]):
            req = Claim("w1", ("a", "b"), 9, LEASE, frozenset(("metadata",)), max_bytes=100_000)
            assert [number(job) for job in (await store.claim(req, T0)).jobs] == expected

    async def test_a_job_heavier_than_the_bound_comes_alone(self, store: Backend) -> None:
        await self.put(store, row(1, cells={"blob": bytes(100_000)}), row(2))
        for expected in (1, 2):
            claimed = await store.claim(Claim("w1", ("q",), 10, LEASE, max_bytes=1), T0)
            assert [number(job) for job in claimed.jobs] == [expected]

    async def test_what_lies_behind_the_bound_is_neither_expired_nor_passed_over(self, store: Backend) -> None:
        big = {"blob": bytes(100_000)}
        await self.put(store, row(1, cells=big), row(2, expires=5), row(3, cells=big), row(4, delay=1, expires=5))
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE, max_bytes=150_000), T0 + 10)
        assert [job.id for job in claimed.jobs] == [job_id(1), job_id(3)]
        assert [one.id for one in claimed.expired] == [job_id(2)]

    async def test_a_scheduled_job_is_invisible_until_it_is_due(self, store: Backend) -> None:
        await self.put(store, row(1, delay=10 * SECOND), row(2, delay=20 * SECOND, priority=-1))
        early = await store.claim(Claim("w1", ("q",), 10, LEASE), T0 + 10 * SECOND - 1)
        assert (early.jobs, early.next_in) == ([], 1)
        due = await store.claim(Claim("w1", ("q",), 10, LEASE), T0 + 10 * SECOND)
        assert ([j.id for j in due.jobs], due.next_in) == ([job_id(1)], 10 * SECOND)

    async def test_a_scheduled_job_of_high_priority_does_not_block_due_ones(self, store: Backend) -> None:
        await self.put(store, *(row(n, priority=-9, delay=SECOND) for n in range(50)), row(99))
        assert [j.id for j in await self.take(store, 10)] == [job_id(99)]

    @needs("strict_order")
    async def test_order_holds_over_many_priorities_in_one_claim(self, store: Backend) -> None:
        await self.put(store, *(row(n, priority=(n * 7_919) % 2_003 - 1_000, delay=n % 3) for n in range(900)))
        spec = sorted(((n * 7_919) % 2_003 - 1_000, n % 3, n) for n in range(900))
        jobs = await self.take(store, 500, at=T0 + 5) + await self.take(store, 500, at=T0 + 5)
        assert [job.id for job in jobs] == [job_id(n) for _, _, n in spec]

    @needs("strict_order")
    async def test_what_is_not_due_hides_nothing_whatever_its_priority(self, store: Backend) -> None:
        """Also what was put back with a delay, rescheduled, or paused and resumed before it is due."""
        later = range(100, 400)
        await self.put(store, *(row(n, priority=n - 30_000, delay=MINUTE + n) for n in later))
        await self.put(store, row(1, priority=-9), row(2, priority=9), row(3, priority=-9), row(4, priority=-9))
        first, *others = await self.take(store, 3)
        await store.finish([settle(first, JobState.AVAILABLE, delay=MINUTE)], T0)
        await store.alter(Selector(ids=[job_id(2)]), Reschedule(MINUTE + 1), T0)
        await store.alter(Selector(ids=[job_id(399)]), Pause(), T0)
        await store.alter(Selector(ids=[job_id(399)]), Resume(), T0)
        await self.put(store, row(5, priority=30_000))
        claimed = await store.claim(Claim("w1", ("q",), 2, LEASE), T0)
        assert ([job.id for job in claimed.jobs], claimed.next_in) == ([job_id(5)], MINUTE)
        assert [job.id for job in others] == [job_id(3), job_id(4)]
        due = await store.claim(Claim("w1", ("q",), 1_000, LEASE), T0 + MINUTE + 1_000)
        assert [number(job) for job in due.jobs] == [*later, 1, 2]

    @needs("strict_order")
    async def test_when_a_great_many_become_due_at_once_none_is_left(self, store: Backend) -> None:
        """However many jobs a claim promotes, it says that there is more."""
        for start in range(0, 3_000, 1_000):
            await self.put(store, *(row(n, priority=-n, delay=SECOND + n) for n in range(start, start + 1_000)))
        await self.put(store, row(9_000, priority=1, delay=2 * SECOND))
        found: list[int] = []
        for _ in range(10):
            claimed = await store.claim(Claim("w1", ("q",), 5_000, LEASE, max_bytes=1 << 30), T0 + SECOND + 3_000)
            found += map(number, claimed.jobs)
            assert [job.priority for job in claimed.jobs] == sorted(job.priority for job in claimed.jobs)
            if claimed.next_in != 0:
                break
            assert claimed.jobs
        assert claimed.next_in == SECOND - 3_000
        assert sorted(found) == [*range(3_000)]

    async def test_one_claim_after_the_other_takes_what_became_due_meanwhile_in_order(self, store: Backend) -> None:
        await self.put(store, *(row(n, priority=n % 5, delay=n) for n in range(200)))
        for now in range(0, 220, 20):
            due = [n for n in range(now - 19, now + 1) if 0 <= n < 200]
            found = [number(job) for job in await self.take(store, 100, at=T0 + now)]
            assert found == sorted(due, key=lambda n: (n % 5, n))

    async def test_a_clock_that_is_set_back_makes_nothing_claimable_early(self, store: Backend) -> None:
        await self.put(store, *(row(n, delay=10 * SECOND) for n in range(3)))
        assert len(await self.take(store, 1, at=T0 + 10 * SECOND)) == 1
        early = await store.claim(Claim("w1", ("q",), 10, LEASE), T0 + 9 * SECOND)
        assert (early.jobs, early.next_in) == ([], SECOND)
        await self.put(store, row(9), at=T0 + 9 * SECOND)
        assert [number(job) for job in await self.take(store, 10, at=T0 + 9 * SECOND)] == [9]
        assert [number(job) for job in await self.take(store, 10, at=T0 + 10 * SECOND)] == [1, 2]

    async def test_two_claims_from_two_queues_share_what_is_there(self, store: Backend) -> None:
        await self.put(store, *(row(n, queue="ab"[n % 2]) for n in range(20)))
        other = store.sibling()
        await other.open()
        try:
            calls = [one.claim(Claim(f"w{n}", ("a", "b"), 10, LEASE), T0) for n, one in enumerate((store, other))]
            answers = await asyncio.gather(*calls)
        finally:
            await other.close()
        found = sorted(number(job) for claimed in answers for job in claimed.jobs)
        assert found == [*range(20)] or any(claimed.next_in == 0 for claimed in answers)

    @needs("policies")
    async def test_claims_from_very_many_queues_bring_all_in_the_end(self, store: Backend) -> None:
        """A claim may stop before it has looked everywhere, and then says so."""
        queues = tuple(f"q{n}" for n in range(2_100))
        await self.put(store, *(row(n, queue=f"q{n}") for n in (*range(30), 1_000, 2_099)), row(3_000, queue="q5"))
        found: list[int] = []
        for turn in range(20):
            claimed = await store.claim(Claim("w1", queues[turn:] + queues[:turn], 10, LEASE), T0)
            found += [number(job) for job in claimed.jobs]
            if len(claimed.jobs) < 10 and claimed.next_in is None:
                break
            assert claimed.jobs or claimed.next_in == 0
        assert sorted(found) == [*range(30), 1_000, 2_099, 3_000]

    @needs("policies")
    async def test_claims_from_very_many_tenants_and_governed_queues_bring_all_in_the_end(self, store: Backend) -> None:
        queues = tuple(f"q{n}" for n in range(40))
        assert store.policies is not None
        for queue in queues:
            assert await store.policies.save(Policy(queue=queue, tenant_batch=1), T0)
        rows = [row(n, tenant=f"t{n}", queue="q0") for n in range(600)]
        rows += [row(1_000 + n, queue=queue) for n, queue in enumerate(queues)]
        for start in range(0, len(rows), 100):
            await self.put(store, *rows[start : start + 100])
        found: list[int] = []
        at = T0
        for turn in range(60):
            turned = queues[turn % 40 :] + queues[: turn % 40]
            claimed = await store.claim(Claim("w1", turned, 1_000, LEASE), at)
            found += [number(job) for job in claimed.jobs]
            if claimed.next_in is None:
                break
            at += 1 + claimed.next_in
        assert at < T0 + SECOND
        assert sorted(found) == [*range(600), *range(1_000, 1_040)]

    async def test_paused_jobs_and_queues_are_passed_over(self, store: Backend) -> None:
        await self.put(store, row(1), row(2), row(3, queue="r"))
        await store.alter(Selector(ids=[job_id(1)]), Pause(), T0)
        await self.policies(store).pause(QueuePause("r"), T0)
        claimed = await store.claim(Claim("w1", ("q", "r"), 10, LEASE), T0)
        assert ([j.id for j in claimed.jobs], claimed.next_in) == ([job_id(2)], None)
        await self.policies(store).pause(QueuePause("r", paused=False), T0)
        assert [j.id for j in await self.take(store, queues=("q", "r"))] == [job_id(3)]

    async def test_jobs_that_were_lost_too_often_are_passed_over(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, priority=1), row(3, priority=1))
        await self.take_one(store, holder="gone")
        now = T0 + LEASE
        await store.reap(Reap(), now)
        claim = Claim("w1", ("q",), 1, LEASE, lost_below=1)
        passing = await store.claim(claim, now)
        assert ([j.id for j in passing.jobs], passing.passed_over) == ([job_id(2)], True)
        passing = await store.claim(replace(claim, limit=10), now)
        assert ([j.id for j in passing.jobs], passing.passed_over) == ([job_id(3)], True)
        unready = await store.claim(replace(claim, limit=10), now - 1)
        assert (unready.jobs, unready.passed_over) == ([], False)
        all_ = await store.claim(replace(claim, lost_below=2), now)
        assert ([j.id for j in all_.jobs], all_.passed_over) == ([job_id(1)], False)

    async def test_a_job_behind_the_last_one_taken_is_not_passed_over(self, store: Backend) -> None:
        await self.put(store, row(2), row(3, priority=1))
        await self.take(store, holder="gone")
        now = T0 + LEASE
        await store.reap(Reap(), now)
        await self.put(store, row(1, priority=-1), row(4, priority=1, queue="r"), at=now)
        claimed = await store.claim(Claim("w1", ("q", "r"), 1, LEASE, lost_below=1), now)
        assert ([j.id for j in claimed.jobs], claimed.passed_over) == ([job_id(1)], False)
        claimed = await store.claim(Claim("w1", ("q", "r"), 1, LEASE, lost_below=1), now)
        assert ([j.id for j in claimed.jobs], claimed.passed_over) == ([job_id(4)], True)

    async def test_only_wanted_sections_are_brought(self, store: Backend) -> None:
        await self.put(store, row(1, cells={"parameters": b"p", "vm_state": b"v"}), row(2, cells={"blob": b"b"}))
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE, frozenset({"parameters"})), T0)
        assert [j.cells for j in claimed.jobs] == [{"parameters": b"p"}, {}]
        assert (await self.get(store, 1, "vm_state")).cells == {"vm_state": b"v"}

    async def test_a_section_that_is_not_wanted_is_not_one_that_is_absent(self, store: Backend) -> None:
        await self.put(store, row(1, cells={"parameters": b"p", "vm_state": b"", "blob": b"b"}), row(2, cells={}))
        await self.put(store, row(3, cells={"vm_state": b"v", "metadata": b"m"}, headers=b"h"))
        [first, none, third] = await self.take(store)
        assert [list(j.left) for j in (first, none, third)] == [[], [], []]
        changed: dict[str, bytes | None] = {"vm_state": b"w", "metadata": None, "blob": b"c"}
        await store.finish([settle(third, JobState.AVAILABLE, cells=changed)], T0)
        await store.finish([settle(job, JobState.AVAILABLE) for job in (first, none)], T0)
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE, frozenset({"parameters", "metadata"})), T0)
        found = {job.id: (job.cells, sorted(job.left), job.headers) for job in claimed.jobs}
        assert found[job_id(1)] == ({"parameters": b"p"}, ["blob", "vm_state"], None)
        assert found[job_id(2)] == ({}, [], None)
        assert found[job_id(3)] == ({}, ["blob", "vm_state"], b"h")
        assert (await self.get(store, 3, "vm_state")).cells == {"vm_state": b"w"}
        assert (await self.get(store, 3, "blob", "metadata")).cells == {"blob": b"c"}

    async def test_an_expired_job_is_never_started(self, store: Backend) -> None:
        await self.put(store, row(1, expires=10, key="k"), row(2, expires=11), row(3))
        claimed = await store.claim(Claim("w1", ("q",), 10, LEASE), T0 + 10)
        assert [j.id for j in claimed.jobs] == [job_id(2), job_id(3)]
        assert list(claimed.expired) == [Reaped(job_id(1), "q", "t", JobState.CANCELLED, 0, "expired", "k")]
        record = await self.get(store, 1)
        assert (record.state, record.reason, record.finished_at) == (JobState.CANCELLED, "expired", T0 + 10)
        await self.put(store, row(4, key="k"), at=T0 + 10)

    async def test_expiry_does_not_touch_a_job_that_has_started(self, store: Backend) -> None:
        await self.put(store, row(1, expires=10))
        job = await self.take_one(store)
        assert await store.finish([settle(job)], T0 + 100) == [JobState.COMPLETED]

    async def test_expired_jobs_do_not_crowd_out_good_ones(self, store: Backend) -> None:
        await self.put(store, *(row(n, expires=1) for n in range(20)), row(99))
        assert [j.id for j in await self.take(store, 1, at=T0 + 5)] == [job_id(99)]

    async def test_no_job_goes_to_two_holders(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(200)))
        siblings = [store.sibling() for _ in range(3)]
        for sibling in siblings:
            await sibling.open()
        try:
            stores = itertools.cycle([store, *siblings])
            calls = [self.take(next(stores), 7, holder=f"w{n}") for n in range(60)]
            claimed = [job.id for jobs in await asyncio.gather(*calls) for job in jobs]
        finally:
            for sibling in siblings:
                await sibling.close()
        claimed += [j.id for j in await self.take(store, 200)]
        assert sorted(claimed) == [job_id(n) for n in range(200)]

    async def test_a_retried_job_keeps_its_identity_and_gets_the_next_epoch(self, store: Backend) -> None:
        await self.put(store, row(1, cells={"blob": b"b"}))
        for n in range(5):
            job = await self.take_one(store, holder=f"w{n}")
            assert (job.id, job.epoch, job.attempt, job.cells) == (job_id(1), T0 + n, n, {"blob": b"b"})
            await store.finish([settle(job, JobState.AVAILABLE, f"w{n}", failed_attempt=True)], T0)

    async def test_an_epoch_is_never_behind_the_clock(self, store: Backend) -> None:
        """A claim after the store has forgotten an earlier one gives a higher epoch all the same."""
        await self.put(store, row(1), row(2, delay=5 * SECOND))
        first = await self.take_one(store, at=T0 + SECOND)
        assert first.epoch == T0 + SECOND
        await store.finish([settle(first, JobState.AVAILABLE, delay=4 * SECOND)], T0 + SECOND)
        jobs = await self.take(store, at=T0 + 5 * SECOND)
        assert [job.epoch for job in jobs] == [T0 + 5 * SECOND] * 2

    async def test_an_epoch_rises_also_when_the_clock_is_set_back(self, store: Backend) -> None:
        await self.put(store, row(1), at=T0 - MINUTE)
        first = await self.take_one(store)
        await store.finish([settle(first, JobState.AVAILABLE, delay=None)], T0)
        again = await self.take_one(store, at=T0 - SECOND)
        assert again.epoch == first.epoch + 1

    async def test_a_job_has_begun_once_it_was_leased(self, store: Backend) -> None:
        await self.put(store, row(1), row(2), row(3))
        first, second, third = await self.take(store)
        ends = [settle(first, JobState.AVAILABLE), settle(second, JobState.PAUSED)]
        await store.finish(ends, T0)
        await store.alter(Selector(ids=[second.id]), Resume(), T0)
        await store.reap(Reap(), T0 + LEASE)
        again = await self.take(store, at=T0 + LEASE)
        assert {job.id: job.begun for job in again} == {first.id: True, second.id: True, third.id: True}

    async def test_a_job_that_was_given_back_unbegun_has_not_begun(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        given_back: list[Leased] = []
        for n in range(3):
            jobs = await self.take(store, at=T0 + n)
            assert [job.begun for job in jobs] == [False, False]
            assert [job.epoch for job in jobs] == [T0 + n] * 2
            back = [settle(jobs[0], JobState.AVAILABLE, delay=None, keep_lost=True, unbegun=True)]
            back.append(settle(jobs[1], JobState.PAUSED, delay=None, keep_lost=True, unbegun=True))
            await store.finish(back, T0 + n)
            assert {(await self.get(store, number)).epoch for number in (1, 2)} == {T0 + n}
            await store.alter(Selector(ids=[job_id(2)]), Resume(), T0 + n)
            given_back += jobs
        stale = [settle(job) for job in given_back]
        assert await store.finish(stale, T0 + 3) == [None] * len(stale)
        job = await self.take_one(store, at=T0 + 3)
        await store.finish([settle(job, JobState.AVAILABLE)], T0 + 3)
        assert {job.id: job.begun for job in await self.take(store, at=T0 + 3)} == {job_id(1): True, job_id(2): False}

    async def test_epochs_and_beginnings_are_told_where_tenants_take_turns(self, store: Backend) -> None:
        if store.policies is None:
            return
        await store.policies.save(Policy(queue="q", tenant_batch=1), T0)
        await self.put(store, *(row(n, tenant=f"t{n % 2}") for n in range(4)))
        for n in range(2):
            jobs = await self.take(store, at=T0 + n)
            assert [(job.epoch, job.begun) for job in jobs] == [(T0 + n, False)] * 4
            back = [settle(job, JobState.AVAILABLE, delay=None, keep_lost=True, unbegun=True) for job in jobs]
            await store.finish(back, T0 + n)
        [first, *_] = await self.take(store, at=T0 + 2)
        await store.finish([settle(first, JobState.AVAILABLE)], T0 + 2)
        [again] = await self.take(store, at=T0 + 3)
        assert (again.id, again.epoch, again.begun) == (first.id, T0 + 3, True)
