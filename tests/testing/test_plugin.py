"""What users' own tests get from the pytest plugin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from headrace import App, JobState
from headrace.errors import InvalidJob
from headrace.testing.jobs import AppJobs

Use = Callable[..., AbstractContextManager[AppJobs]]

app = App("sqlite:///never-made.db")


@app.task(queue="mail")
async def welcome(user_id: int, template: str = "hello") -> str:
    if template == "again":
        await remind.options(delay="1d").enqueue(user_id)
    return f"{template} {user_id}"


@app.task
async def remind(user_id: int) -> None: ...


async def test_enqueued_jobs_are_seen_and_run(headrace_jobs: Use) -> None:
    with headrace_jobs(app) as jobs:
        handle = await welcome.options(key="w", tenant="acme").enqueue(42)
        [job] = jobs.assert_enqueued(welcome, args={"user_id": 42}, queue="mail", key="w", tenant="acme", count=1)
        assert job.state is JobState.AVAILABLE
        await jobs.drain()
        assert jobs.enqueued() == []
        assert await handle.result() == "hello 42"


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
