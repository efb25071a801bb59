"""hints: which listeners hear of what. Losing hints is allowed; these tests show that the usual ones come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from msgspec.structs import replace

from headrace.seam.policy import Policy, QueuePause, TenantLimit
from headrace.seam.protocol import Backend
from headrace.seam.records import WATCHERS, Cancel, Hint, Reap, Reschedule, Selector, Watch
from headrace.testing.conformance.base import HOUR, LEASE, T0, ConformanceBase, job_id, needs, row, settle
from headrace.types import JobState

PATIENCE = 10.0


async def first(hints: AsyncIterator[Hint]) -> Hint:
    async with asyncio.timeout(PATIENCE):
        return await anext(hints)


class HintTests(ConformanceBase):
    @needs("hints")
    async def test_an_insert_wakes_the_listeners_of_its_queue(self, store: Backend) -> None:
        assert store.hints is not None
        sibling = store.sibling()
        await sibling.open()
        try:
            async with store.hints.listen(["queue:q"]) as hints:
                await self.put(sibling, row(1, queue="other"))
                await self.put(sibling, row(2))
                assert await first(hints) == Hint("queue:q")
        finally:
            await sibling.close()

    @needs("hints")
    async def test_whatever_makes_a_job_claimable_wakes_the_queue(self, store: Backend) -> None:
        assert store.hints is not None
        await self.put(store, *(row(n) for n in range(4)))
        jobs = await self.take(store)
        async with store.hints.listen(["queue:q"]) as hints:
            await store.finish([settle(jobs[0], JobState.AVAILABLE)], T0)
            assert await first(hints) == Hint("queue:q")
            await store.finish([settle(jobs[1], spawn=[row(9)])], T0)
            assert await first(hints) == Hint("queue:q")
            await store.reap(Reap(), T0 + LEASE)
            assert await first(hints) == Hint("queue:q")
            await store.alter(Selector(ids=[job_id(9)]), Reschedule(), T0)
            assert await first(hints) == Hint("queue:q")

    @needs("hints")
    async def test_so_does_the_end_of_a_job_for_whose_turn_others_wait(self, store: Backend) -> None:
        assert store.hints is not None
        await self.put(store, row(1, group="g"), row(2, group="g"))
        [job] = await self.take(store)
        async with store.hints.listen(["queue:q"]) as hints:
            await store.finish([settle(job)], T0)
            assert await first(hints) == Hint("queue:q")

    @needs("hints", "policies")
    async def test_so_does_the_end_of_a_job_where_there_are_limits(self, store: Backend) -> None:
        assert store.hints is not None
        assert store.policies is not None
        rules = (Policy(queue="q", running=1), Policy(queue="q", tenant_running=1), Policy(queue="q", tenant_workers=1))
        for version, rule in enumerate(rules):
            assert await store.policies.save(replace(rule, version=version), T0)
            await self.put(store, row(10 * version + 1), row(10 * version + 2))
            [job] = await self.take(store, 1)
            async with store.hints.listen(["queue:q"]) as hints:
                await store.finish([settle(job)], T0)
                assert await first(hints) == Hint("queue:q")
            await store.finish([settle(job) for job in await self.take(store)], T0)

    @needs("hints", "policies")
    async def test_so_does_a_change_of_the_rules(self, store: Backend) -> None:
        assert store.hints is not None
        assert store.policies is not None
        async with store.hints.listen(["queue:q"]) as hints:
            assert await store.policies.save(Policy(queue="q", running=1), T0)
            assert await first(hints) == Hint("queue:q")
            await store.policies.limit(TenantLimit("q", "a", 1), T0)
            assert await first(hints) == Hint("queue:q")
            for tenant, task in ((None, None), ("a", None), (None, "t")):
                await store.policies.pause(QueuePause("q", tenant, task, paused=False), T0)
                assert await first(hints) == Hint("queue:q")

    @needs("hints")
    async def test_every_way_to_end_tells_the_waiter(self, store: Backend) -> None:
        assert store.hints is not None
        await self.put(store, *(row(n, reply_to="me") for n in range(6)), row(6, reply_to="me", expires=1))
        jobs = {job.id: job for job in await self.take(store, 5)}
        async with store.hints.listen(["inbox:me"]) as hints:
            for number, state in enumerate((JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)):
                await store.finish([settle(jobs[job_id(number)], state)], T0)
                assert await first(hints) == Hint("inbox:me", job_id(number))
            await store.finish([settle(jobs[job_id(3)], keep=False)], T0)
            assert await first(hints) == Hint("inbox:me", job_id(3))
            await store.reap(Reap(max_lost=0, limit=1), T0 + LEASE)
            assert await first(hints) == Hint("inbox:me", job_id(4))
            await store.alter(Selector(ids=[job_id(5)]), Cancel(), T0)
            assert await first(hints) == Hint("inbox:me", job_id(5))
            assert await self.take(store, at=T0 + 1) == []
            assert await first(hints) == Hint("inbox:me", job_id(6))

    @needs("hints")
    async def test_what_is_fenced_off_leaves_the_waiters_waiting(self, store: Backend) -> None:
        assert store.hints is not None
        await self.put(store, row(1, reply_to="me"))
        job = await self.take_one(store)
        async with store.hints.listen(["inbox:me"]) as hints:
            assert await store.finish([settle(job, holder="w2")], T0) == [None]
            assert await store.finish([settle(job, JobState.FAILED, holder="w2", error=b"e")], T0) == [None]
            await store.finish([settle(job)], T0)
            assert await first(hints) == Hint("inbox:me", job_id(1))

    @needs("hints")
    async def test_a_job_that_is_not_kept_tells_its_waiter_whatever_else_it_does(self, store: Backend) -> None:
        assert store.hints is not None
        await self.put(store, row(1, reply_to="me"))
        job = await self.take_one(store)
        async with store.hints.listen(["inbox:me"]) as hints:
            await store.finish([settle(job, keep=False, spawn=[row(2)])], T0)
            assert await first(hints) == Hint("inbox:me", job_id(1))

    @needs("hints")
    async def test_duplicates_and_watchers_join_the_waiters(self, store: Backend) -> None:
        assert store.hints is not None
        await self.put(store, row(1, key="k", reply_to="a"))
        await store.insert([row(2, key="k", reply_to="b")], T0)
        await store.alter(Selector(ids=[job_id(1)]), Watch("c"), T0)
        topics = ["inbox:a", "inbox:b", "inbox:c"]
        async with store.hints.listen(topics) as hints:
            await store.finish([settle(await self.take_one(store))], T0)
            assert {await first(hints) for _ in topics} == {Hint(t, job_id(1)) for t in topics}

    @needs("hints")
    async def test_the_oldest_waiters_make_room_for_others(self, store: Backend) -> None:
        """A job that never ends does not remember everybody that ever waited for it."""
        assert store.hints is not None
        await self.put(store, row(1, key="k", reply_to="first"))
        for n in range(WATCHERS):
            await store.alter(Selector(ids=[job_id(1)]), Watch(f"w{n}"), T0 + 1 + n)
        await store.alter(Selector(ids=[job_id(1)]), Watch("w0"), T0 + WATCHERS + 1)
        await store.insert([row(2, key="k", reply_to="last")], T0 + WATCHERS + 2)
        async with store.hints.listen([f"inbox:{name}" for name in ("first", "w0", "w1", "w2", "last")]) as hints:
            await store.finish([settle(await self.take_one(store, at=T0 + HOUR))], T0 + HOUR)
            told = {await first(hints) for _ in range(3)}
            assert told == {Hint(f"inbox:{name}", job_id(1)) for name in ("w0", "w2", "last")}
            await self.put(store, row(3, reply_to="last"), at=T0 + HOUR)
            await store.finish([settle(await self.take_one(store, at=T0 + HOUR))], T0 + HOUR)
            assert await first(hints) == Hint("inbox:last", job_id(3)), "and nobody else was told"

    @needs("hints")
    async def test_a_retry_tells_no_waiter_and_keeps_it_waiting(self, store: Backend) -> None:
        assert store.hints is not None
        async with store.hints.listen(["inbox:me", "queue:q"]) as hints:
            await self.put(store, row(1, reply_to="me"))
            assert await first(hints) == Hint("queue:q")
            await store.finish([settle(await self.take_one(store), JobState.AVAILABLE)], T0)
            assert await first(hints) == Hint("queue:q")
            await store.finish([settle(await self.take_one(store))], T0)
            assert await first(hints) == Hint("inbox:me", job_id(1))

    @needs("hints")
    async def test_a_cancel_request_wakes_the_holder(self, store: Backend) -> None:
        assert store.hints is not None
        await self.put(store, row(1))
        await self.take_one(store)
        async with store.hints.listen(["holder:w1"]) as hints:
            await store.alter(Selector(ids=[job_id(1)]), Cancel(), T0)
            assert await first(hints) == Hint("holder:w1")
