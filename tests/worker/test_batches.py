"""Handlers of many jobs: full batches, one outcome each, middleware around each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Again, App, Done, Job, JobState, Outcome, immediate, never
from headrace.worker.middleware import Next


async def states(app: App, handles: list[Any]) -> list[JobState]:
    return [(await handle.info()).state for handle in handles]


async def test_a_batch_handler_gets_many_jobs_and_answers_for_each(make_app: Callable[..., App]) -> None:
    app = make_app(concurrency=1)
    sizes: list[int] = []

    @app.batch(size=10)
    async def many(jobs: list[Job[int]]) -> list[Any]:
        sizes.append(len(jobs))
        return [Again("1h") if job.payload % 2 else Done(job.payload) for job in jobs]

    async with app:
        handles = await app.enqueue_many([many.job(n) for n in range(40)])
        await app.drain()
        found = await states(app, handles)
    assert found == [JobState.AVAILABLE if n % 2 else JobState.COMPLETED for n in range(40)]
    assert sizes[0] == 10
    assert (sum(sizes), max(sizes)) == (40, 10)


async def test_batches_fill_up_beside_plain_tasks(make_app: Callable[..., App]) -> None:
    app = make_app(concurrency=2)
    sizes: list[int] = []

    @app.batch(size=50)
    async def many(jobs: list[Job[int]]) -> None:
        sizes.append(len(jobs))

    @app.task
    async def single() -> None: ...

    async with app:
        await app.enqueue_many([many.job(n) for n in range(1_000)] + [single.job()])
        await app.drain()
    assert sum(sizes) == 1_000
    assert max(sizes) == 50


async def test_an_exception_in_the_answer_fails_that_job_alone(make_app: Callable[..., App]) -> None:
    app = make_app()

    @app.batch(size=10, retry=never())
    async def many(jobs: list[Job[int]]) -> list[Any]:
        return [ValueError("odd") if job.payload % 2 else job.payload for job in jobs]

    async with app:
        handles = await app.enqueue_many([many.job(n) for n in range(4)])
        await app.drain()
        assert await states(app, handles) == [JobState.COMPLETED, JobState.FAILED] * 2
        assert (await handles[1].info()).failures[-1].message == "odd"


async def test_the_shortest_timeout_of_a_batch_counts(make_app: Callable[..., App]) -> None:
    app = make_app(lease="60s")

    @app.batch(size=10, retry=never())
    async def many(jobs: list[Job[int]]) -> None:
        await asyncio.Event().wait()

    async with app, asyncio.timeout(60):
        handles = await app.enqueue_many([many.job(1), many.job(2, timeout="20ms")])
        await app.drain()
        assert await states(app, handles) == [JobState.FAILED] * 2


async def test_middleware_runs_around_each_job_and_the_handler_once(make_app: Callable[..., App]) -> None:
    app = make_app()
    order: list[str] = []

    @app.middleware
    async def note(job: Job[Any], next: Next) -> Outcome:
        order.append(f"before {job.payload}")
        outcome = await next(job)
        order.append(f"after {job.payload}")
        return outcome

    @app.batch(size=10)
    async def many(jobs: list[Job[int]]) -> list[int]:
        order.append(f"all {[job.payload for job in jobs]}")
        return [10 * job.payload for job in jobs]

    async with app:
        handles = await app.enqueue_many([many.job(n) for n in range(2)])
        await app.drain()
        assert [await handle.result() for handle in handles] == [0, 10]
    assert order == ["before 0", "before 1", "all [0, 1]", "after 0", "after 1"]


async def test_middleware_may_turn_a_job_away_and_see_how_it_failed(make_app: Callable[..., App]) -> None:
    app = make_app()
    seen: list[str] = []
    handled: list[list[int]] = []

    @app.middleware
    async def guard(job: Job[Any], next: Next) -> Outcome:
        if job.payload == 0:
            return Done("turned away")
        if job.payload == 1:
            raise PermissionError("not you")
        try:
            return await next(job)
        except ValueError as error:
            seen.append(str(error))
            raise

    @app.batch(size=10, retry=never())
    async def many(jobs: list[Job[int]]) -> None:
        handled.append([job.payload for job in jobs])
        raise ValueError("all of them")

    async with app:
        handles = await app.enqueue_many([many.job(n) for n in range(4)])
        await app.drain()
        failed = [JobState.FAILED] * 3
        assert await states(app, handles) == [JobState.COMPLETED, *failed]
        assert (await handles[1].info()).failures[-1].type == "PermissionError"
    assert handled == [[2, 3]]
    assert seen == ["all of them"] * 2


async def test_middleware_that_turns_all_away_leaves_the_handler_alone(make_app: Callable[..., App]) -> None:
    app = make_app()

    @app.middleware
    async def closed(job: Job[Any], next: Next) -> Outcome:
        return Done("closed")

    @app.batch(size=10)
    async def many(jobs: list[Job[int]]) -> None:
        raise AssertionError("nobody got through")

    async with app:
        handles = await app.enqueue_many([many.job(n) for n in range(2)])
        await app.drain()
        assert [await handle.result() for handle in handles] == ["closed"] * 2


async def test_a_second_call_of_next_is_an_error_and_hangs_nobody(make_app: Callable[..., App]) -> None:
    app = make_app()

    @app.middleware
    async def twice(job: Job[Any], next: Next) -> Outcome:
        await next(job)
        return await next(job)

    @app.batch(size=10, retry=never())
    async def many(jobs: list[Job[int]]) -> None: ...

    async with app, asyncio.timeout(60):
        [handle] = await app.enqueue_many([many.job(1)])
        await app.drain()
        info = await handle.info()
    assert (info.state, info.failures[-1].type) == (JobState.FAILED, "RuntimeError")


@pytest.mark.parametrize("middleware", [False, True])
async def test_a_wrong_number_of_answers_fails_the_attempt(make_app: Callable[..., App], middleware: bool) -> None:
    app = make_app()
    runs: list[int] = []

    if middleware:

        @app.middleware
        async def pass_on(job: Job[Any], next: Next) -> Outcome:
            return await next(job)

    @app.batch(size=10, retry=immediate(2))
    async def many(jobs: list[Job[int]]) -> list[int]:
        runs.append(len(jobs))
        return [1]

    async with app:
        handles = await app.enqueue_many([many.job(n) for n in range(3)])
        await app.drain()
        assert await states(app, handles) == [JobState.FAILED] * 3
    assert sum(runs) == 6


@pytest.mark.parametrize("when", ["before", "after", "handler"])
async def test_a_cancellation_that_was_raised_for_one_job_is_that_job_s(
    make_app: Callable[..., App], when: str
) -> None:
    app = make_app()

    async def moody(job: Job[Any], next: Next) -> Outcome:
        if when == "before" and job.payload == 2:
            raise asyncio.CancelledError
        outcome = await next(job)
        if when == "after" and job.payload == 2:
            raise asyncio.CancelledError
        return outcome

    app.middleware(moody)

    @app.batch(size=10, retry=immediate(1))
    async def work(jobs: list[Job[int]]) -> list[Any]:
        return [asyncio.CancelledError() if when == "handler" and job.payload == 2 else job.payload for job in jobs]

    async with app:
        handles = await app.enqueue_many(work.job(n) for n in (1, 2, 3))
        await app.drain()
        infos = [await handle.info() for handle in handles]
    assert [info.state for info in infos] == [JobState.COMPLETED, JobState.FAILED, JobState.COMPLETED]
    assert infos[1].failures[0].type == "CancelledError"


async def test_a_handler_of_many_that_raises_a_cancellation_has_failed(make_app: Callable[..., App]) -> None:
    app = make_app(concurrency=1)

    async def plain(job: Job[Any], next: Next) -> Outcome:
        return await next(job)

    app.middleware(plain)

    @app.batch(retry=immediate(1))
    async def work(jobs: list[Job[int]]) -> None:
        raise asyncio.CancelledError

    async with app:
        handle = await work.enqueue(1)
        await app.drain()
        assert (await handle.info()).failures[0].type == "CancelledError"
