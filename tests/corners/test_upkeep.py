"""Corner cases of everyday life: what is told of a job, what is cleared away, connections that break, scripts that are
forgotten, and errors that nobody listens for."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest

from headrace import Client, EventKind, Job, JobState, Queue, immediate
from headrace.core.clock import ManualClock
from headrace.seam.records import Claim, Claimed, Selector
from headrace.worker.handler import Ending
from tests import postgres, valkey
from tests.facades.harness import Events, Gate, Store, serving, settings, within, working
from tests.worker.stores import Plain


async def test_a_status_tells_attempts_and_when_the_job_was_made(store: Store) -> None:
    """P19: not when it last changed."""
    clock = ManualClock()
    queue, other, events = store.queue(clock=clock, retry=immediate(5)), store.queue(clock=clock), Events()
    queue.client.observers.add(events)

    @queue.execute
    async def third_time(job: Job[int]) -> int:
        if job.attempt < 2:
            clock.advance("1m")
            raise ValueError("not yet")
        return job.payload

    await queue.enqueue("a", 1)
    before = await other.status("a")
    async with serving(queue):
        await events.until(EventKind.COMPLETED)
    after = await other.status("a")
    assert before is not None
    assert after is not None
    assert (before.attempts, after.attempts, after.state) == (0, 2, "completed")
    assert after.created_at == before.created_at
    assert clock.now() - int(after.created_at.timestamp() * 1e6) == timedelta(minutes=2) / timedelta(microseconds=1)


def cut(kind: str) -> None:
    """Break every connection that backends have to the server."""
    if kind == "valkey":
        for listens in ("normal", "pubsub"):
            valkey.server().call("CLIENT", "KILL", "TYPE", listens)
    else:
        with psycopg.connect(postgres.server().url(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'headrace' AND pid <> pg_backend_pid()"
            )


@pytest.mark.parametrize("store", ["postgres", "valkey"], indirect=True)
async def test_connections_that_are_cut_are_made_again(store: Store) -> None:
    """P22: those that listen too. The worker does not poll, so what it finds it was told of; and a hint
    carries none of the payload."""
    queue, elsewhere = Queue[str, int]("jobs", store.client(worker={"poll": "1h"})), store.queue()
    gate = Gate()

    @queue.execute
    async def gated(job: Job[str]) -> int:
        await gate.pass_through()
        return len(job.payload)

    async with serving(queue), asyncio.TaskGroup() as group:
        for number in range(4):
            waiting = group.create_task(elsewhere.enqueue_and_wait(f"job-{number}", "x" * 20_000))
            await gate.reached()
            cut(store.kind)
            gate.open()
            assert await within(waiting) == 20_000
            gate = Gate()


async def test_what_has_ended_is_cleared_away_though_nobody_asks_for_it(store: Store) -> None:
    """P23: and jobs are told apart by their ids, not by what they carry."""
    bounds = {"age": "0s", "count": 10, "bytes": 10**6}
    kept = {"every": "20ms", "completed": bounds, "failed": bounds, "cancelled": bounds}
    app, events = store.app(retention=kept, result_ttl="10ms", patience="10ms"), Events()
    app.observe(events)

    @app.task
    async def same(text: str) -> str:
        return text

    waiting = await same.options(delay="1h").enqueue("the same bytes")
    async with working(app):
        await app.enqueue_many([same.job("the same bytes") for _ in range(20)])
        await events.until(EventKind.COMPLETED, 20)
        async with asyncio.timeout(60):
            while await store.count() > 1:
                await asyncio.sleep(0.02)
    assert (await waiting.info()).state is JobState.AVAILABLE


class Stumbling(Plain):
    """A store whose first claim fails in a way that nobody has heard of."""

    stumbles = True

    async def claim(self, req: Claim, at: int | None = None) -> Claimed:
        if self.stumbles:
            self.stumbles = False
            raise RuntimeError("in the store")
        return await self.inner.claim(req, at)


async def test_an_error_that_nobody_listens_for_is_logged_and_work_goes_on(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """P30: one of the worker's own, and one of a hook in every job."""
    queue = Queue[int, int]("jobs", Client(Stumbling(store.backend()), settings()))

    @queue.execute
    async def echo(job: Job[int]) -> int:
        return job.payload

    @queue.after
    async def broken(job: Job[int], ending: Ending) -> None:
        raise ZeroDivisionError("in the hook")

    async with serving(queue):
        for number in range(3):
            assert await within(queue.enqueue_and_wait(f"{number}", number)) == number
    await queue.client.close()
    assert "in the store" in caplog.text
    assert "the after hook failed" in caplog.text


@pytest.mark.parametrize("store", ["valkey"], indirect=True)
async def test_scripts_that_the_server_has_forgotten_are_sent_again(store: Store) -> None:
    """P32: whatever is asked for first after a restart or a failover."""
    queue = store.queue()

    @queue.execute
    async def echo(job: Job[int]) -> int:
        return job.payload

    async def forget() -> None:
        for what in ("SCRIPT", "FUNCTION"):
            valkey.server().call(what, "FLUSH", "SYNC")

    await queue.enqueue("a", 1)
    for use in (
        queue.enqueue("b", 2),
        queue.enqueue("c", 3),
        queue.cancel("c"),
        queue.status("a"),
        queue.work(burst=True),
        queue.result("a"),
        queue.update_result_ttl("a", "1h"),
        queue.client.stats(),
        queue.client.list_jobs(Selector()),
    ):
        await forget()
        await within(use)
    assert [await queue.result(name) for name in "abc"] == [1, 2, None]
    async with serving(queue):
        await forget()
        assert await within(queue.enqueue_and_wait("d", 4)) == 4
