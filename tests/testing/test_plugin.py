"""What users' own tests get from the pytest plugin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from msgspec import Struct

from headrace import App, Job, JobState, Queue, exponential
from headrace.errors import ConfigError, InvalidJob, WaitTimeout
from headrace.testing.jobs import AppJobs

Use = Callable[..., AbstractContextManager[AppJobs]]

app = App("sqlite:///never-made.db")


class Size(Struct):
    width: int
    height: int


@app.task(queue="mail")
async def welcome(user_id: int, template: str = "hello") -> str:
    if template == "again":
        await remind.options(delay="1d").enqueue(user_id)
    return f"{template} {user_id}"


@app.task
async def remind(user_id: int) -> None: ...


@app.task(retry=exponential(2))
def divide(by: int) -> float:
    return 1 / by


@app.task
async def fit(size: Size) -> None: ...


@app.batch
async def anything(jobs: list[Job[Any]]) -> None: ...


async def test_enqueued_jobs_are_seen_and_run(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs:
        handle = await welcome.options(key="w", tenant="acme").enqueue(42)
        [job] = jobs.assert_enqueued(welcome, args={"user_id": 42}, queue="mail", key="w", tenant="acme", count=1)
        assert job.state is JobState.AVAILABLE
        await jobs.drain()
        assert jobs.enqueued() == []
        assert await handle.result() == "hello 42"


@pytest.mark.parametrize(
    ("payload", "wanted", "not_wanted"),
    [
        (1, 1, 2),
        (0, 0, 1),
        ([1, 2], [1, 2], [1]),
        ({"a": 1, "b": 2}, {"a": 1}, {"a": 2}),
        ({"a": 1}, {}, 1),
        ("text", "text", {"text": 1}),
        (Size(1, 2), Size(1, 2), Size(1, 3)),
    ],
    ids=repr,
)
async def test_the_payload_of_a_batch_task_is_compared(
    headrace_jobs: Use, payload: object, wanted: object, not_wanted: object
) -> None:
    with headrace_jobs(app) as jobs:
        await anything.enqueue(payload)
        jobs.assert_enqueued(anything, args=wanted, count=1)
        jobs.assert_enqueued(anything, args=not_wanted, count=0)
        with pytest.raises(AssertionError, match="expected a job"):
            jobs.assert_enqueued(anything, args=not_wanted)


async def test_arguments_are_compared_as_plain_data(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs:
        await fit.enqueue(Size(1, 2))
        jobs.assert_enqueued(fit, args={"size": Size(1, 2)}, count=1)
        jobs.assert_enqueued(fit, args={"size": {"width": 1, "height": 2}}, count=1)


@pytest.mark.parametrize(
    ("given", "words"), [(Queue[int, int]("numbers", "memory://"), "Queue 'numbers'; test that on"), (None, "None")]
)
def test_only_an_app_will_do(headrace_jobs: Use, given: object, words: str) -> None:
    """Told at once, not when the first job is looked for."""
    with pytest.raises(ConfigError, match=f"expected an App, got {words}"):
        headrace_jobs(given)


async def test_time_passes_only_when_it_is_told_to(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs:
        await welcome.enqueue(1, template="again")
        await jobs.drain()
        await jobs.drain()
        jobs.assert_enqueued(remind, args={"user_id": 1}, count=1)
        jobs.clock.advance("1d")
        await jobs.drain()
        assert jobs.enqueued() == []
        assert [info.state for info in jobs.all()] == [JobState.COMPLETED] * 2


async def test_a_missing_job_is_told_with_what_is_there(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs:
        await welcome.enqueue(7)
        with pytest.raises(
            AssertionError, match=r"expected a job of .*welcome with \{'args': \{'user_id': 8\}\}"
        ) as told:
            jobs.assert_enqueued(welcome, args={"user_id": 8})
        assert "'user_id': 7" in str(told.value)
        with pytest.raises(AssertionError, match=r"expected 2 job\(s\)"):
            jobs.assert_enqueued(welcome, count=2)
        jobs.assert_enqueued(remind, count=0)


def test_a_plain_test(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs:
        handle = welcome.enqueue_sync(42)
        jobs.assert_enqueued(welcome, count=1)
        with pytest.raises(ConfigError, match=r"nothing was done.*call jobs.run\(\) here"):
            jobs.drain()
        jobs.run()
        assert jobs.enqueued() == []
        assert handle.result(wait=0) == "hello 42"


async def test_an_async_test_may_not_block(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs, pytest.raises(ConfigError, match=r"use: await jobs.drain\(\)"):
        jobs.run()


async def test_waiting_runs_what_is_due(headrace_jobs: Use) -> None:
    """Nobody else would."""
    with headrace_jobs(app) as jobs:
        handle = await welcome.enqueue(1, template="again")
        with pytest.raises(WaitTimeout):
            await handle.result(wait=0)
        assert await handle.result() == "again 1"
        assert await welcome.call(2) == "hello 2"
        jobs.assert_enqueued(remind, count=1)


def test_waiting_runs_what_is_due_in_a_plain_test(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs:
        assert welcome.call_sync(2) == "hello 2"
        handle = welcome.options(delay="1h").enqueue_sync(3)
        with pytest.raises(WaitTimeout, match="advance the clock, then wait for it"):
            handle.result()
        jobs.clock.advance("1h")
        assert handle.result() == "hello 3"


async def test_failures_are_told(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs:
        await welcome.enqueue(1)
        await jobs.drain()
        jobs.assert_none_failed()
        await divide.enqueue(0)
        await jobs.drain()
        jobs.clock.advance("1h")
        await jobs.drain()
        with pytest.raises(AssertionError, match=r"(?s)2 did:.*divide.*ZeroDivisionError: .*test_plugin\.py"):
            jobs.assert_none_failed()


async def test_inline_jobs_have_run_when_enqueue_returns(headrace_jobs: Use) -> None:
    with headrace_jobs(app, inline=True) as jobs:
        handle = await welcome.enqueue(3)
        assert (await handle.info()).state is JobState.COMPLETED
        with pytest.raises(InvalidJob):
            await welcome.enqueue("three")  # type: ignore[arg-type]
        assert len(jobs.all()) == 1


async def test_tests_do_not_see_each_others_jobs(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs:
        await welcome.enqueue(1)
    with headrace_jobs(app) as jobs:
        assert jobs.all() == []
