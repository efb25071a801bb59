"""Opening, closing, siblings, capabilities and limits."""

from __future__ import annotations

from pathlib import Path

from headrace.seam.protocol import Backend
from headrace.testing.conformance.base import T0, ConformanceBase, needs, row, settle
from headrace.types import JobState


class LifecycleTests(ConformanceBase):
    async def test_opening_and_closing_twice_is_harmless(self, tmp_path: Path) -> None:
        backend = self.connect(tmp_path)
        await backend.close()
        await backend.open()
        await backend.open()
        await self.put(backend, row(1))
        await backend.close()
        await backend.close()

    async def test_the_capabilities_named_are_the_capabilities_there(self, store: Backend) -> None:
        assert ("hints" in self.capabilities) == (store.hints is not None)
        assert ("finish_and_claim" in self.capabilities) == (store.finish_and_claim is not None)
        assert ("references" in self.capabilities) == (store.references is not None)
        assert ("documents" in self.capabilities) == (store.documents is not None)
        assert ("archive" in self.capabilities) == (store.archive is not None)
        assert ("tables" in self.capabilities) == (store.tables is not None)
        assert ("usage" in self.capabilities) == (store.usage is not None)
        assert ("reserve" in self.capabilities) == (store.reserve is not None)
        assert ("tracks" in self.capabilities) == (store.tracks is not None)
        assert ("transfers" in self.capabilities) == (store.transfers is not None)
        assert store.limits.durable
        assert store.limits.max_batch >= 1_000

    async def test_the_clock_told_is_the_one_that_jobs_go_by(self, store: Backend) -> None:
        before = await store.now()
        await store.insert([row(1)])
        after = await store.now()
        assert before <= (await self.get(store, 1)).enqueued_at <= after
        assert await store.now(T0) == T0

    async def test_a_sibling_sees_the_same_jobs(self, store: Backend) -> None:
        sibling = store.sibling()
        await sibling.open()
        try:
            await self.put(store, row(1))
            job = await self.take_one(sibling, holder="w2")
            assert await store.finish([settle(job, holder="w2")], T0) == [JobState.COMPLETED]
            assert await self.state(sibling, 1) is JobState.COMPLETED
        finally:
            await sibling.close()

    async def test_a_sibling_outlives_the_one_that_made_it(self, store: Backend) -> None:
        sibling = store.sibling()
        await sibling.open()
        try:
            await self.put(store, row(1))
            await store.close()
            assert await self.state(sibling, 1) is JobState.AVAILABLE
        finally:
            await sibling.close()

    @needs("durable")
    async def test_what_was_acknowledged_is_there_after_a_reopen(self, tmp_path: Path) -> None:
        first = self.connect(tmp_path)
        await first.open()
        await self.put(first, row(1), row(2, key="k"), row(3), row(4, delay=5))
        job = await self.take_one(first)
        await first.finish([settle(job, result=b"r", result_ttl=1_000)], T0)
        await first.close()

        second = self.connect(tmp_path)
        await second.open()
        try:
            assert (await self.get(second, 1, "result")).result == b"r"
            assert [j.id for j in await self.take(second, at=T0 + 5)] == [row(n).id for n in (2, 3, 4)]
        finally:
            await second.close()
