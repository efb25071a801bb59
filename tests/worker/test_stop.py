"""Stopping: nothing stays behind, and it takes no longer than promised."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from headrace import App, EventKind, JobState
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Claimed, Stamp
from tests.worker.conftest import Told, working
from tests.worker.stores import Plain


class SlowClaims(Plain):
    """Its claims are carried out at once and answered when the test says so."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.held = False
        self.taken, self.answer = asyncio.Event(), asyncio.Event()

    async def claim(self, req: Claim, at: Stamp = None) -> Claimed:
        claimed = await self.inner.claim(req, at)
        if self.held and claimed.jobs:
            self.taken.set()
            await self.answer.wait()
        return claimed


async def _stop_in_the_middle_of_a_claim(app: App, slow: SlowClaims, work: Any, *, before: int) -> list[JobState]:
    async with working(app):
        handles = [await work.enqueue() for _ in range(before)]
        while before and app.worker is not None and app.worker.health().busy < before:
            await asyncio.sleep(0)
        slow.held = True
        handles += [await work.enqueue() for _ in range(3)]
        await slow.taken.wait()
        app.stop()
        await asyncio.sleep(0)
        slow.answer.set()
    async with app:
        return [(await handle.info()).state for handle in handles[before:]]


async def test_a_claim_under_way_leaves_no_orphan(make_app: Callable[..., App], store: Backend) -> None:
    slow = SlowClaims(store.sibling())
    app = make_app(slow, lease="60s")
    ran: list[int] = []

    @app.task
    async def work() -> None:
        ran.append(1)

    states = await _stop_in_the_middle_of_a_claim(app, slow, work, before=0)
    assert states == [JobState.AVAILABLE] * 3
    assert ran == []


async def test_a_claim_under_way_starts_nothing_beside_a_job_that_runs(
    make_app: Callable[..., App], store: Backend
) -> None:
    slow = SlowClaims(store.sibling())
    app = make_app(slow, lease="60s", concurrency=4)
    ran: list[int] = []

    @app.task
    async def work() -> None:
        ran.append(1)
        while not slow.answer.is_set():
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)

    states = await _stop_in_the_middle_of_a_claim(app, slow, work, before=1)
    assert states == [JobState.AVAILABLE] * 3
    assert ran == [1]


async def test_a_handler_that_will_not_be_cancelled_delays_a_stop_by_a_second_at_most(
    make_app: Callable[..., App],
) -> None:
    """C30: a stop takes the grace time and one second more."""
    app = make_app(grace="100ms", lease="60s")
    told = Told()
    app.observe(told)
    released = asyncio.Event()

    @app.task
    async def stubborn() -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    async with app:
        handle = await stubborn.enqueue()
    async with asyncio.timeout(60):
        async with working(app):
            await told.wait_for(EventKind.STARTED)
            loop = asyncio.get_running_loop()
            asked = loop.time()
        took = loop.time() - asked
    async with app:
        assert (await handle.info()).state is JobState.AVAILABLE
    released.set()
    assert took < 30, "it must not wait for the handler"
