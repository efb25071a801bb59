"""reap: what vanished holders left, poison, expiry."""

from __future__ import annotations

import asyncio

from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Reap, Reaped
from headrace.testing.conformance.base import LEASE, MINUTE, SECOND, T0, ConformanceBase, job_id, row, settle
from headrace.types import JobState

END = T0 + LEASE
GAP, STEADY = 5 * SECOND, 20 * SECOND
REAP = Reap(holder="w2", gap=GAP, steady=STEADY)


async def beat(store: Backend, at: int, *, leaving: bool = False) -> None:
    """A sign of life of the holder that reaps."""
    await store.renew(Beat("w2", "host-w2", ("q",), LEASE, gap=GAP, leaving=leaving), at)


class ReapTests(ConformanceBase):
    async def test_a_live_lease_is_left_alone(self, store: Backend) -> None:
        await self.put(store, row(1))
        await self.take_one(store)
        assert await store.reap(Reap(), END - 1) == []
        assert await self.state(store, 1) is JobState.RUNNING

    async def test_an_expired_lease_is_taken_back_once(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        await store.finish([settle(job, JobState.AVAILABLE, failed_attempt=True)], T0)
        await self.take_one(store)
        [reaped] = await store.reap(Reap(), END)
        assert reaped == Reaped(job_id(1), "q", "t", JobState.AVAILABLE, 1, "")
        assert await store.reap(Reap(), END) == []
        again = await self.take_one(store, at=END)
        assert (again.epoch, again.attempt, again.lost) == (END, 1, 1)

    async def test_hundreds_of_leases_are_taken_back_by_one_call(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(450)))
        assert len(await self.take(store, 450)) == 450
        assert len(await store.reap(Reap(limit=430), END)) == 430
        assert len(await store.reap(Reap(limit=430), END)) == 20

    async def test_a_holder_that_does_not_beat_takes_nothing_back(self, store: Backend) -> None:
        await self.put(store, row(1), row(2, expires=SECOND, delay=2 * SECOND))
        await self.take_one(store)
        assert [r.id for r in await store.reap(REAP, END)] == [job_id(2)]
        assert await store.reap(REAP, END + MINUTE) == []
        assert await self.state(store, 1) is JobState.RUNNING
        assert len(await store.reap(Reap(), END + MINUTE)) == 1

    async def test_a_holder_is_steady_after_a_while(self, store: Backend) -> None:
        await self.put(store, row(1))
        await self.take_one(store)
        for step in range(4):
            now = END + step * GAP
            await beat(store, now)
            assert await store.reap(REAP, now + GAP // 2) == []
        now = END + STEADY
        await beat(store, now)
        assert len(await store.reap(REAP, now)) == 1

    async def test_a_holder_whose_beats_paused_takes_nothing_back_for_a_while(self, store: Backend) -> None:
        """As after a store stood still: others may come a moment later than this one."""
        await self.put(store, row(1))
        await self.take_one(store)
        now = END
        for _ in range(10):
            await beat(store, now)
            now += GAP
        assert await store.reap(REAP, now + 1) == []
        now += 1
        await beat(store, now)
        assert await store.reap(REAP, now) == []
        for _ in range(4):
            now += GAP
            await beat(store, now)
        assert len(await store.reap(REAP, now)) == 1

    async def test_a_holder_that_has_left_takes_nothing_back(self, store: Backend) -> None:
        await self.put(store, row(1))
        await self.take_one(store)
        for now in range(END, END + STEADY + 1, GAP):
            await beat(store, now)
        await beat(store, now, leaving=True)
        assert await store.reap(REAP, now) == []

    async def test_too_many_consecutive_losses_are_poison(self, store: Backend) -> None:
        await self.put(store, row(1, key="k"))
        now = T0
        for lost in (1, 2):
            await self.take_one(store, at=now)
            now += LEASE
            [reaped] = await store.reap(Reap(max_lost=2), now)
            assert (reaped.state, reaped.lost) == (JobState.AVAILABLE, lost)
        await self.take_one(store, at=now)
        now += LEASE
        [reaped] = await store.reap(Reap(max_lost=2), now)
        assert (reaped.state, reaped.lost, reaped.reason) == (JobState.FAILED, 3, "lost")
        record = await self.get(store, 1, at=now)
        assert (record.state, record.reason, record.finished_at) == (JobState.FAILED, "lost", now)
        await self.put(store, row(2, key="k"), at=now)

    async def test_at_most_the_limit_oldest_first(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(6)))
        for n in range(6):
            await self.take_one(store, at=T0 + n)
        reaped = await store.reap(Reap(limit=4), END + MINUTE)
        assert [r.id for r in reaped] == [job_id(n) for n in range(4)]
        assert len(await store.reap(Reap(limit=4), END + MINUTE)) == 2

    async def test_what_comes_back_is_spread_over_time(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(10)))
        await self.take(store)
        await store.reap(Reap(spread=10 * SECOND), END)
        due = [len(await self.take(store, at=END + s * SECOND)) for s in range(11)]
        assert sum(due) == 10
        assert max(due) <= 2

    async def test_expired_jobs_that_nobody_claims_are_cancelled(self, store: Backend) -> None:
        await self.put(store, row(1, expires=10, key="k"), row(2, expires=10, delay=50), row(3))
        [reaped] = await store.reap(Reap(), T0 + 20)
        assert reaped == Reaped(job_id(1), "q", "t", JobState.CANCELLED, 0, "expired", "k")
        [later] = await store.reap(Reap(), T0 + 50)
        assert later.id == job_id(2)
        await self.put(store, row(4, key="k"))

    async def test_a_job_taken_back_after_its_expiry_is_answered_once(self, store: Backend) -> None:
        await self.put(store, row(1, expires=10), row(2, expires=LEASE, key="k"))
        await self.take_one(store)
        reaped = await store.reap(Reap(), END)
        assert [(r.id, r.state, r.reason) for r in reaped] == [
            (job_id(1), JobState.AVAILABLE, ""),
            (job_id(2), JobState.CANCELLED, "expired"),
        ]
        [later] = await store.reap(Reap(), END)
        assert (later.id, later.state, later.lost, later.reason) == (job_id(1), JobState.CANCELLED, 1, "expired")

    async def test_a_finish_that_came_first_wins(self, store: Backend) -> None:
        await self.put(store, row(1))
        job = await self.take_one(store)
        await store.finish([settle(job)], END)
        assert await store.reap(Reap(), END + MINUTE) == []
        assert await self.state(store, 1) is JobState.COMPLETED

    async def test_concurrent_reaps_take_each_job_once(self, store: Backend) -> None:
        await self.put(store, *(row(n) for n in range(100)))
        await self.take(store)
        sibling = store.sibling()
        await sibling.open()
        try:
            calls = [side.reap(Reap(limit=20), END) for side in (store, sibling) for _ in range(5)]
            reaped = [r.id for batch in await asyncio.gather(*calls) for r in batch]
        finally:
            await sibling.close()
        assert sorted(reaped) == [job_id(n) for n in range(100)]
