"""events: messages between processes. Losing some is allowed; these tests show that they come as a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headrace.seam.events import LONGEST, Events
from headrace.seam.protocol import Backend
from headrace.testing.conformance.base import ConformanceBase, needs

PATIENCE = 30.0


async def _next(heard: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return await anext(heard)


async def _until(events: Events, heard: bool) -> None:
    async with asyncio.timeout(PATIENCE):
        while await events.heard() is not heard:
            await asyncio.sleep(0.01)


class EventTests(ConformanceBase):
    def events(self, store: Backend) -> Events:
        """The capability, in tests that need it."""
        assert store.events is not None
        return store.events

    @needs("events")
    async def test_a_listener_hears_what_others_tell(self, store: Backend) -> None:
        sibling = store.sibling()
        await sibling.open()
        try:
            async with self.events(store).listen() as heard:
                await self.events(sibling).tell([b"one"])
                assert await _next(heard) == b"one"
                await self.events(store).tell([b"own"])
                assert await _next(heard) == b"own"
        finally:
            await sibling.close()

    @needs("events")
    async def test_messages_are_any_bytes(self, store: Backend) -> None:
        messages = [b"", b"\0", bytes(range(256)), b"\xff" * LONGEST, "ключ".encode()]
        async with self.events(store).listen() as heard:
            for message in messages:
                await self.events(store).tell([message])
                assert await _next(heard) == message

    @needs("events")
    async def test_several_listeners_hear_the_same(self, store: Backend) -> None:
        events = self.events(store)
        async with events.listen() as first, events.listen() as second:
            await events.tell([b"a"])
            assert (await _next(first), await _next(second)) == (b"a", b"a")

    @needs("events")
    async def test_it_is_known_whether_anybody_listens(self, store: Backend) -> None:
        sibling = store.sibling()
        await sibling.open()
        try:
            assert not await self.events(sibling).heard()
            async with self.events(store).listen():
                await _until(self.events(sibling), True)
                async with self.events(store).listen():
                    await _until(self.events(store), True)
                await _until(self.events(sibling), True)
            await _until(self.events(sibling), False)
        finally:
            await sibling.close()

    @needs("events")
    async def test_nobody_waits_for_a_listener_that_does_not_read(self, store: Backend) -> None:
        events = self.events(store)
        async with events.listen() as heard, asyncio.timeout(PATIENCE):
            for _ in range(200):
                await events.tell([b"x" * LONGEST] * 10)
            assert await anext(heard) == b"x" * LONGEST

    @needs("events")
    async def test_to_tell_nobody_is_no_error(self, store: Backend) -> None:
        await self.events(store).tell([])
        await self.events(store).tell([b"nobody hears this"])
        async with self.events(store).listen() as heard:
            await self.events(store).tell([b"but this"])
            assert await _next(heard) == b"but this"
