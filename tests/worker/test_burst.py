"""Workers that end when nothing is due: where there are no others, they take back what vanished ones left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace import App, JobState
from headrace.seam.records import Claim
from headrace.testing.jobs import in_memory


async def test_what_a_vanished_worker_left_is_worked(make_app: Callable[..., App]) -> None:
    """It waits until it may take the jobs back: for half a lease, and only since there are some."""
    app = make_app(lease="3s", reap="50ms")
    ran: list[int] = []

    async def run(number: int) -> None:
        ran.append(number)

    t = app.task(name="t")(run)
    async with app:
        handles = [await t.enqueue(number) for number in range(20)]
        backend = await app.client.backend()
        assert len((await backend.claim(Claim("vanished", ("default",), 20, 1))).jobs) == 20
        async with asyncio.timeout(60):
            await app.drain()
        assert sorted(ran) == [*range(20)]
        infos = [await app.get(handle.id) for handle in handles]
        assert {info.state for info in infos} == {JobState.COMPLETED}
        await t.enqueue(20)
        await backend.claim(Claim("alive", ("default",), 1, 3_600_000_000))
    patient = make_app(lease="10m", reap="50ms")
    patient.task(name="t")(run)
    async with patient, asyncio.timeout(60):  # nobody's lease has run out
        await patient.drain()


async def test_where_time_stands_still_nobody_waits() -> None:
    app = App()
    ran: list[int] = []

    @app.task(name="t")
    async def t(number: int) -> None:
        ran.append(number)

    with in_memory(app) as jobs:
        for number in range(20):
            await t.enqueue(number)
        backend = await app.client.backend()
        claim = Claim("vanished", ("default",), 20, 30_000_000)
        assert len((await backend.claim(claim, jobs.clock.stamp())).jobs) == 20
        async with asyncio.timeout(60):
            await app.drain()
        assert ran == []
        jobs.clock.advance("31s")
        async with asyncio.timeout(60):
            await app.drain()
        assert sorted(ran) == [*range(20)]
