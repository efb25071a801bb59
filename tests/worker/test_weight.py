"""What the jobs of a worker weigh: large ones do not fill its memory, however many slots it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from headrace import App

MIB = 1024 * 1024


@pytest.mark.parametrize("concurrency", [1, 12])
async def test_large_jobs_run_few_at_a_time(make_app: Callable[..., App], concurrency: int) -> None:
    """Each claim brings one at least, and a worker may have two claims under way; the others wait in the store."""
    app = make_app(concurrency=concurrency, max_bytes=2 * MIB)
    running: set[int] = set()
    most = 0
    done = asyncio.Event()
    left = 12

    @app.task(result_ttl=0)
    async def take(n: int, body: str) -> None:
        nonlocal most, left
        running.add(n)
        most = max(most, len(running))
        await asyncio.sleep(0.2)  # long enough that all slots would be in use
        running.remove(n)
        left -= 1
        if not left:
            done.set()

    await app.enqueue_many(take.job(n, Random(n).randbytes(3 * MIB).hex()) for n in range(12))
    work = asyncio.ensure_future(app.work())
    async with asyncio.timeout(100):
        await done.wait()
    app.stop()
    await work
    assert most <= min(concurrency, 3)


async def test_small_jobs_use_all_slots(make_app: Callable[..., App]) -> None:
    app = make_app(concurrency=12, max_bytes=2 * MIB)
    started = 0
    all_running = asyncio.Event()

    @app.task
    async def take(body: str) -> None:
        nonlocal started
        started += 1
        if started == 12:
            all_running.set()
        await all_running.wait()

    await app.enqueue_many(take.job("x" * 1_000) for _ in range(12))
    work = asyncio.ensure_future(app.work())
    async with asyncio.timeout(100):
        await all_running.wait()
    app.stop()
    await work
