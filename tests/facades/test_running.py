"""Who runs what, and since when."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace import Job, Queue
from tests.facades.harness import Store, within, working


async def test_jobs_of_a_worker(store: Store) -> None:
    """002-23, 002-16: with the instant at which each began."""
    app = store.app(worker={"name": "one", "concurrency": 3})
    began, enough = asyncio.Queue[Job[Any]](), asyncio.Event()

    @app.task(name="wait")
    async def wait(job: Job[Any]) -> None:
        began.put_nowait(job)
        await enough.wait()

    await app.enqueue_many([wait.job() for _ in range(10)])
    async with working(app):
        jobs = [await within(began.get()) for _ in range(3)]
        while not (found := await app.client.jobs_of_worker("one")):
            await asyncio.sleep(0)  # until its first beat has been stored, the store does not know its name
        assert {info.id for info in found} == {job.id for job in jobs}
        for info in found:
            assert info.started_at is not None
            assert info.enqueued_at is not None
            assert info.enqueued_at <= info.started_at
            assert info.last_transition == info.started_at
            assert (info.worker, info.transitions) == ("one", 1)
        assert await app.client.jobs_of_worker("other") == []
        enough.set()


async def test_status_says_since_when(store: Store) -> None:
    client = store.client()
    queue: Queue[Any, Any] = Queue("notes", client)
    began, enough = asyncio.Event(), asyncio.Event()

    @queue.execute
    async def note(job: Job[Any]) -> Any:
        began.set()
        await enough.wait()

    async with queue:
        await queue.enqueue("one", "text")
        await within(began.wait())
        running = await queue.status("one")
        assert running is not None
        assert running.since is not None
        assert running.created_at <= running.since
        enough.set()
        await within(queue.enqueue_and_wait("one", "text"))
        ended = await queue.status("one")
        assert ended is not None
        assert ended.since is not None
        assert (ended.state, ended.since >= running.since) == ("completed", True)
