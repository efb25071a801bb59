"""insert: until when a key is taken, if the new row has a say in it."""

from __future__ import annotations

import asyncio

import pytest

from headrace.seam.protocol import Backend
from headrace.seam.records import Cancel, InsertStatus, JobKey, KeyUntil, Selector, SweepClause, SweepTarget
from headrace.testing.conformance.base import HOUR, T0, ConformanceBase, job_id, row, settle
from headrace.types import JobState

NEW, DUPLICATE = InsertStatus.NEW, InsertStatus.DUPLICATE


class KeyTests(ConformanceBase):
    @pytest.mark.parametrize("until", [KeyUntil.ENDED, KeyUntil.STARTED])
    async def test_a_key_until_its_job_has_ended(self, store: Backend, until: KeyUntil) -> None:
        """Held or not, a completed job does not keep it. The old result stays; the new job has the key."""
        await self.put(store, row(1, key="k"))
        [waits] = await store.insert([row(2, key="k", key_until=until)], T0)
        assert (waits.status, waits.id) == (DUPLICATE, job_id(1))
        await store.finish([settle(await self.take_one(store), result=b"r", result_ttl=HOUR)], T0)
        await self.put(store, row(3, key="k", key_until=until))
        [old, new] = await store.fetch([job_id(1), JobKey("q", "k")], frozenset({"result"}), T0)
        assert (old and old.result, new and new.id) == (b"r", job_id(3))
        [answer] = await store.insert([row(4, key="k")], T0)
        assert (answer.status, answer.id) == (DUPLICATE, job_id(3))
        await store.alter(Selector(ids=[job_id(3)]), Cancel(), T0)
        await self.put(store, row(5, key="k"))

    async def test_a_key_until_its_job_has_ended_is_taken_while_it_runs(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        await self.take_one(store)
        [answer] = await store.insert([row(2, key="k", key_until=KeyUntil.ENDED)], T0)
        assert (answer.status, answer.id, answer.state) == (DUPLICATE, job_id(1), JobState.RUNNING)

    @pytest.mark.parametrize("end", [JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED])
    async def test_a_key_until_its_job_has_started(self, store: Backend, end: JobState) -> None:
        """A running job loses its key to the next one, and its end does not give it back."""
        await self.put(store, row(1, key="k"))
        running = await self.take_one(store)
        await self.put(store, row(2, key="k", key_until=KeyUntil.STARTED))
        [answer] = await store.insert([row(3, key="k", key_until=KeyUntil.STARTED)], T0)
        assert (answer.status, answer.id, answer.state) == (DUPLICATE, job_id(2), JobState.AVAILABLE)
        await store.finish([settle(running, end, result_ttl=HOUR)], T0)
        [answer] = await store.insert([row(4, key="k")], T0)
        assert (answer.status, answer.id) == (DUPLICATE, job_id(2))
        await store.finish([settle(await self.take_one(store), result_ttl=0)], T0)
        await self.put(store, row(5, key="k"))

    async def test_a_job_that_lost_its_key_may_wait_again(self, store: Backend) -> None:
        """Beside the job that has it now."""
        await self.put(store, row(1, key="k"))
        running = await self.take_one(store)
        await self.put(store, row(2, key="k", key_until=KeyUntil.STARTED))
        await store.finish([settle(running, JobState.AVAILABLE, failed_attempt=True)], T0)
        assert {job.id for job in await self.take(store)} == {job_id(1), job_id(2)}
        [answer] = await store.insert([row(3, key="k")], T0)
        assert (answer.status, answer.id) == (DUPLICATE, job_id(2))

    @pytest.mark.parametrize("until", [KeyUntil.ENDED, KeyUntil.STARTED])
    async def test_a_key_that_outlives_its_job_is_free_then(self, store: Backend, until: KeyUntil) -> None:
        await self.put(store, row(1, key="k"))
        await store.finish([settle(await self.take_one(store), result=b"r", result_ttl=HOUR)], T0)
        await store.sweep(SweepClause(target=SweepTarget.COMPLETED, max_count=0), T0)
        [answer] = await store.insert([row(2, key="k")], T0)
        assert (answer.status, answer.state) == (DUPLICATE, JobState.COMPLETED)
        await self.put(store, row(3, key="k", key_until=until))
        assert [one.count for one in (await store.stats(T0)).kept if one.target == SweepTarget.KEYS] in ([], [0])
        await store.finish([settle(await self.take_one(store), result_ttl=0)], T0)
        await self.put(store, row(4, key="k"))

    async def test_rows_of_one_batch_share_a_key_until(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"), row(2, key="m"))
        running = await self.take(store, 2)
        rows = [row(n, key=key, key_until=KeyUntil.STARTED) for n, key in ((3, "k"), (4, "m"), (5, "k"), (6, "n"))]
        answers = await store.insert(rows, T0)
        assert [(a.status, a.id) for a in answers] == [
            (NEW, job_id(3)), (NEW, job_id(4)), (DUPLICATE, job_id(3)), (NEW, job_id(6)),
        ]  # fmt: skip
        await store.finish([settle(job, result_ttl=HOUR) for job in running], T0)
        assert len(await self.take(store)) == 3

    async def test_of_concurrent_inserts_past_a_running_job_one_is_new(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        running = await self.take_one(store)
        sibling = store.sibling()
        await sibling.open()
        try:
            stores = store, sibling
            inserts = [stores[n % 2].insert([row(n, key="k", key_until=KeyUntil.STARTED)], T0) for n in range(2, 22)]
            ends = store.finish([settle(running, result_ttl=HOUR)], T0)
            answers, _ = await asyncio.gather(asyncio.gather(*inserts), ends)
        finally:
            await sibling.close()
        assert sum(answer.status is NEW for [answer] in answers) == 1
        assert len(await self.take(store)) == 1
