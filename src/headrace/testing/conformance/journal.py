"""journal: entries stay as they were written, newest first, and are bounded."""

from __future__ import annotations

import asyncio

from headrace.seam.journal import Journal
from headrace.seam.protocol import Backend
from headrace.testing.conformance.base import SECOND, T0, ConformanceBase, needs


class JournalTests(ConformanceBase):
    def journal(self, store: Backend) -> Journal:
        """The capability, in tests that need it."""
        assert store.journal is not None
        return store.journal

    @needs("journal")
    async def test_entries_are_read_as_they_were_written(self, store: Backend) -> None:
        texts = [b"", b"\0", bytes(range(256)), b"x" * 16_384]
        numbers = [await self.journal(store).write(text, T0 + n) for n, text in enumerate(texts)]
        found = await self.journal(store).read()
        assert [(one.number, one.at, one.text) for one in reversed(found)] == [
            (number, T0 + n, text) for n, (number, text) in enumerate(zip(numbers, texts, strict=True))
        ]

    @needs("journal")
    async def test_pages_lead_to_pages(self, store: Backend) -> None:
        for n in range(25):
            await self.journal(store).write(b"%d" % n, T0 + n * SECOND)
        seen: list[bytes] = []
        before = None
        while page := await self.journal(store).read(before, 10):
            seen += [one.text for one in page]
            before = page[-1].number
        assert seen == [b"%d" % n for n in reversed(range(25))]

    @needs("journal")
    async def test_concurrent_entries_are_all_there(self, store: Backend) -> None:
        sibling = store.sibling()
        await sibling.open()
        try:
            journals = [self.journal(store), self.journal(sibling)]
            numbers = await asyncio.gather(*(journals[n % 2].write(b"%d" % n, T0) for n in range(40)))
            assert len(set(numbers)) == 40
            found = await self.journal(sibling).read()
            assert sorted(int(one.text) for one in found) == [*range(40)]
            assert [one.number for one in found] == sorted(numbers, reverse=True)
        finally:
            await sibling.close()

    @needs("journal")
    async def test_the_store_has_the_time(self, store: Backend) -> None:
        before = await store.now()
        await self.journal(store).write(b"now")
        [entry] = await self.journal(store).read(limit=1)
        assert before <= entry.at <= await store.now()

    @needs("journal", "durable")
    async def test_entries_survive_a_restart(self, store: Backend) -> None:
        await self.journal(store).write(b"kept", T0)
        await store.close()
        await store.open()
        assert [one.text for one in await self.journal(store).read()] == [b"kept"]
