"""``headrace_jobs(app, inline=True)``: what is enqueued has run. And what a memory store cannot stand in for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from headrace import App, Job, JobState, SyncApp, exponential, never
from headrace.errors import ConfigError, JobFailed, WaitTimeout
from headrace.testing.jobs import AppJobs, in_memory

Use = Callable[..., AbstractContextManager[AppJobs]]

app = App("postgresql://localhost/never-opened", worker={"concurrency": 2})
jobs = SyncApp(app)


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task
def plain(a: int) -> int:
    return jobs.call(add, a, 1) + jobs.enqueue(add, 0, 1).result()


@app.task
async def parent(n: int) -> int:
    handles = [await add.enqueue(n, i) for i in range(3)]
    return sum([await handle.result() for handle in handles])


@app.task(retry=exponential(3, base="1h"))
async def flaky() -> None:
    raise OSError("the line is busy")


@app.task(retry=never())
async def broken() -> None:
    raise OSError("the line is cut")


@app.batch
async def index(given: list[Job[str]]) -> list[int]:
    return [len(job.payload) for job in given]


async def test_call(headrace_jobs: Use) -> None:
    with headrace_jobs(app, inline=True) as seen:
        assert await add.call(1, 2) == 3
        assert await plain.call(1) == 3
        assert await parent.call(1) == 6
        assert await index.call("abc") == 3
        with pytest.raises(JobFailed, match="the line is cut"):
            await broken.call()
        assert seen.enqueued() == []


async def test_enqueue_many(headrace_jobs: Use) -> None:
    with headrace_jobs(app, inline=True):
        handles = await app.enqueue_many([add.job(1, n) for n in range(3)])
        assert [await handle.result() for handle in handles] == [1, 2, 3]
        named = await app.enqueue_named(add.name, {"a": 1, "b": 1})
        assert (await named.info()).state is JobState.COMPLETED


async def test_at_the_same_time(headrace_jobs: Use) -> None:
    with headrace_jobs(app, inline=True):
        async with asyncio.timeout(30):
            assert await asyncio.gather(*(add.call(n, n) for n in range(5))) == [0, 2, 4, 6, 8]
            await asyncio.gather(*(add.enqueue(n, n) for n in range(5)))


async def test_beside_a_worker_of_the_test(headrace_jobs: Use) -> None:
    with headrace_jobs(app, inline=True):
        async with asyncio.timeout(30):
            async with app:
                work = asyncio.ensure_future(app.work())
                assert await add.call(1, 2) == 3
                assert not work.done()
            assert await add.call(3, 4) == 7


async def test_a_job_that_nobody_will_run_is_not_waited_for(headrace_jobs: Use) -> None:
    """The clock stands still: the second attempt would never come."""
    with headrace_jobs(app, inline=True) as seen:
        async with asyncio.timeout(60):
            with pytest.raises(WaitTimeout, match=r"nobody works beside the test.*advance the clock") as told:
                await flaky.call()
        assert "OSError: the line is busy" in str(told.value)
        assert str(seen.enqueued(flaky)[0].id) == told.value.job_id
        later = await add.options(delay="1h").enqueue(1, 1)
        with pytest.raises(WaitTimeout, match="advance the clock"):
            await later.result()
        seen.clock.advance("1h")
        await seen.drain()
        assert await later.result() == 2


def test_in_plain_code() -> None:
    with in_memory(app, inline=True) as seen, SyncApp(app) as plainly:
        assert plainly.call(add, 1, 2) == 3
        assert plainly.call(plain, 1) == 3
        assert [handle.result() for handle in plainly.enqueue_many([add.job(1, 1)])] == [2]
        assert seen.enqueued() == []
    with in_memory(app) as seen, SyncApp(app) as plainly:
        handle = plainly.enqueue(add, 1, 2)
        seen.assert_enqueued(add, args={"a": 1})
        plainly.drain()
        assert handle.result() == 3


async def test_a_helper_that_blocks_in_async_code(headrace_jobs: Use) -> None:
    """It holds up the loop that the handlers need, so its job runs with the next one."""
    with headrace_jobs(app, inline=True) as seen:
        async with asyncio.timeout(60):
            plain.enqueue_sync(1)
            seen.assert_enqueued(plain, count=1)
            assert await add.call(1, 2) == 3
            assert seen.enqueued() == []


async def test_threads_beside_the_test_use_its_loop(headrace_jobs: Use) -> None:
    """Code under test in a thread, before the test itself has used the app."""
    with headrace_jobs(app) as seen:
        handle = await asyncio.to_thread(SyncApp(app).enqueue, add, 1, 2)
        seen.assert_enqueued(add, count=1)
        await seen.drain()
        assert (await app.get(handle.id)).state is JobState.COMPLETED


@pytest.mark.parametrize("inline", [True, False])
async def test_transactions_are_not_stood_in_for(headrace_jobs: Use, inline: bool) -> None:
    connection: Any = object()
    with headrace_jobs(app, inline=inline):
        with pytest.raises(ConfigError, match=r"in memory there are no transactions.*PostgreSQL database of its own"):
            app.bind(connection)
        assert app.client.settings.url == "memory://"
    with pytest.raises(ConfigError, match="expected a connection"):
        app.bind(connection)
