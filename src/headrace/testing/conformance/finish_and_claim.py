"""Finish and claim in one trip."""

from __future__ import annotations

from headrace.seam.protocol import Backend
from headrace.seam.records import Claim
from headrace.testing.conformance.base import LEASE, SECOND, T0, ConformanceBase, job_id, needs, row, settle
from headrace.types import JobState


class FinishAndClaimTests(ConformanceBase):
    @needs("finish_and_claim")
    async def test_a_turn_is_a_finish_and_then_a_claim(self, store: Backend) -> None:
        assert store.finish_and_claim is not None
        await self.put(store, row(1), row(2), row(3))
        one, two = await self.take(store, 2)
        batch = [settle(one), settle(two, holder="zz"), settle(two, JobState.AVAILABLE)]
        settled, claimed = await store.finish_and_claim(batch, Claim("w1", ("q",), 10, LEASE), T0 + 1)
        assert settled == [JobState.COMPLETED, None, JobState.AVAILABLE]
        assert [(j.id, j.epoch) for j in claimed.jobs] == [(job_id(3), T0 + 1), (job_id(2), T0 + 1)]

    @needs("finish_and_claim")
    async def test_a_turn_may_claim_what_it_spawned(self, store: Backend) -> None:
        assert store.finish_and_claim is not None
        await self.put(store, row(1))
        job = await self.take_one(store)
        _, claimed = await store.finish_and_claim([settle(job, spawn=[row(2)])], Claim("w1", ("q",), 10, LEASE), T0)
        assert [j.id for j in claimed.jobs] == [job_id(2)]

    @needs("finish_and_claim")
    async def test_a_turn_with_nothing_to_finish_is_a_claim(self, store: Backend) -> None:
        assert store.finish_and_claim is not None
        await self.put(store, row(1), row(2, delay=SECOND))
        settled, claimed = await store.finish_and_claim([], Claim("w1", ("q",), 10, LEASE), T0)
        assert (settled, [j.id for j in claimed.jobs], claimed.next_in) == ([], [job_id(1)], SECOND)
