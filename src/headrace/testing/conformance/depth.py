"""Depth: a queue, or the store, takes no more jobs than it may."""

from __future__ import annotations

import asyncio

from headrace.seam.policy import OPERATIONS, STORE, Policy
from headrace.seam.protocol import Backend
from headrace.seam.records import (
    Cancel,
    InsertStatus,
    Pause,
    Requeue,
    Room,
    Selector,
)
from headrace.testing.conformance.base import (
    HOUR,
    T0,
    job_id,
    needs,
    row,
    settle,
)
from headrace.testing.conformance.governed import GovernedBase
from headrace.types import JobState


class DepthTests(GovernedBase):
    @needs("policies")
    async def test_a_queue_takes_no_more_jobs_than_its_depth(self, store: Backend) -> None:
        assert await self.policies(store).save(Policy(queue="q", depth=3), T0)
        await self.put(store, row(1), row(2, delay=HOUR))
        answers = await store.insert([row(3), row(4), row(5, queue="r"), row(3), row(6)], T0)
        assert [(one.status.value, one.id) for one in answers] == [
            ("new", job_id(3)),
            ("full", job_id(4)),
            ("new", job_id(5)),
            ("same", job_id(3)),
            ("full", job_id(6)),
        ]
        assert [one.room for one in answers] == [None, Room("q", 3, 3), None, None, Room("q", 3, 3)]
        assert await store.fetch([job_id(4), job_id(6)], at=T0) == [None, None]
        await store.alter(Selector(ids=[job_id(1)]), Pause(), T0)
        assert (await store.insert([row(7)], T0))[0].status is InsertStatus.FULL
        assert await self.got(store, 1) == [3]
        await self.put(store, row(7))

    @needs("policies")
    async def test_a_duplicate_is_told_as_one_even_when_there_is_no_room(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        assert await self.policies(store).save(Policy(queue="q", depth=1), T0)
        answers = await store.insert([row(2, key="k"), row(3, key="other")], T0)
        assert [(one.status, one.id) for one in answers] == [
            (InsertStatus.DUPLICATE, job_id(1)),
            (InsertStatus.FULL, job_id(3)),
        ]
        await store.alter(Selector(ids=[job_id(1)]), Cancel(), T0)
        await self.put(store, row(4, key="other"))

    @needs("policies")
    async def test_what_is_in_the_store_already_is_never_refused(self, store: Backend) -> None:
        await self.put(store, row(1), row(2))
        [first, second] = (await self.claim(store)).jobs
        assert await self.policies(store).save(Policy(queue="q", depth=0), T0)
        await store.finish([settle(first, JobState.AVAILABLE), settle(second, spawn=[row(3)])], T0)
        await store.alter(Selector(ids=[job_id(2)]), Requeue(), T0)
        [answer] = await store.insert([row(4)], T0)
        assert (answer.status, answer.room) == (InsertStatus.FULL, Room("q", 0, 3))
        assert await self.got(store) == [1, 2, 3]

    @needs("store_depth")
    async def test_a_store_that_is_full_takes_operations_unless_it_takes_nothing(self, store: Backend) -> None:
        await self.put(store, row(1))
        assert await self.policies(store).save(Policy(queue=STORE, depth=1), T0)
        answers = await store.insert([row(2), row(3, queue=OPERATIONS), row(4)], T0)
        assert [one.status.value for one in answers] == ["full", "new", "full"]
        assert await self.policies(store).save(Policy(queue=OPERATIONS, depth=1), T0)
        assert (await store.insert([row(5, queue=OPERATIONS)], T0))[0].status is InsertStatus.FULL

    @needs("policies")
    async def test_a_store_that_takes_nothing_takes_no_operations_either(self, store: Backend) -> None:
        assert await self.policies(store).save(Policy(queue=STORE, depth=0), T0)
        assert (await store.insert([row(1, queue=OPERATIONS)], T0))[0].status is InsertStatus.FULL

    @needs("policies")
    async def test_concurrent_inserts_keep_to_the_depth(self, store: Backend) -> None:
        assert await self.policies(store).save(Policy(queue="q", depth=500), T0)
        batches = [[row(100 * n + i) for i in range(100)] for n in range(10)]
        answers = await asyncio.gather(*(store.insert(batch, T0) for batch in batches))
        stored = sum(one.status is InsertStatus.NEW for batch in answers for one in batch)
        assert 500 <= stored <= 505
        [queue] = (await store.stats(T0)).queues
        assert queue.available == stored

    @needs("store_depth")
    async def test_the_store_has_a_depth_too(self, store: Backend) -> None:
        assert await self.policies(store).save(Policy(queue=STORE, depth=3), T0)
        answers = await store.insert([row(n, queue=f"q{n}") for n in range(5)], T0)
        assert [one.status.value for one in answers] == ["new"] * 3 + ["full"] * 2
        assert [one.room for one in answers] == [None] * 3 + [Room(STORE, 3, 3)] * 2
        await self.take(store, queues=("q0",))
        answers = await store.insert([row(n) for n in range(5, 7)], T0)
        assert [one.status.value for one in answers] == ["new", "full"]
        assert await self.policies(store).save(Policy(queue="q", depth=1), T0)
        [answer] = await store.insert([row(7)], T0)
        assert answer.room == Room(STORE, 3, 3)
        [found] = await self.policies(store).find([STORE], T0)
        assert (found.policy.depth, found.governed) == (3, False)
