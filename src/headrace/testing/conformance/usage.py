"""usage: how many bytes a store takes up, and room that it keeps aside."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import HeadraceError
from headrace.seam.protocol import Backend
from headrace.testing.conformance.base import ConformanceBase, needs, row

_MEGABYTE = 1_000_000
_SOON = 60.0
"""Seconds in which what was stored counts, on however busy a machine."""


class UsageTests(ConformanceBase):
    @needs("usage")
    async def test_jobs_take_up_bytes(self, store: Backend) -> None:
        assert store.usage is not None
        before = (await store.usage()).used
        await store.insert([row(n, cells={"blob": bytes([n]) * 100_000}) for n in range(1, 41)])
        async with asyncio.timeout(_SOON):
            while (after := await store.usage()).used < before + 2 * _MEGABYTE:
                await asyncio.sleep(0.1)
        assert after.capacity is None or after.capacity > 0

    @needs("reserve")
    async def test_room_is_kept_aside_in_steps_and_given_up_at_once(self, store: Backend) -> None:
        assert store.reserve is not None
        assert store.usage is not None
        used = (await store.usage()).used
        kept = [await store.reserve(20 * _MEGABYTE) for _ in range(4)]
        assert kept == sorted(kept)
        assert 20 * _MEGABYTE <= kept[-1] <= 30 * _MEGABYTE
        assert await store.reserve(20 * _MEGABYTE) == kept[-1], "it has what it is to have"
        assert (await store.usage()).parts["reserve"] == kept[-1]
        assert (await store.usage()).used < used + _MEGABYTE, "what is kept aside is not used"
        assert await store.reserve(_MEGABYTE) <= 2 * _MEGABYTE
        assert await store.reserve(0) == 0
        assert await store.reserve(0) == 0

    @needs("reserve")
    async def test_no_such_reserve_is_refused(self, store: Backend) -> None:
        assert store.reserve is not None
        with pytest.raises(HeadraceError):
            await store.reserve(-1)
        with pytest.raises(HeadraceError):
            await store.reserve(2**50)
