"""The job that runs here, as code far away from its handler sees it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headrace import App, Event, EventKind, Job, JobFields, current_job, exponential, never
from headrace.core.events import Observers
from headrace.types import Retry


async def test_tasks_that_a_handler_starts_know_its_job_even_after_it_has_ended() -> None:
    app = App("memory://", worker={"concurrency": 1})
    left: list[asyncio.Task[Any]] = []
    go = asyncio.Event()

    async def behind() -> Any:
        await go.wait()
        return current_job()

    @app.task(name="first")
    async def first() -> None:
        left.append(asyncio.ensure_future(behind()))

    @app.task(name="second")
    async def second() -> str:
        go.set()
        await asyncio.wait(left)
        job = current_job()
        assert job is not None
        return job.task

    async with app:
        stored = await first.options(key="k", tenant="t").enqueue()
        other = await second.enqueue()
        await app.drain()
        assert await other.result() == "second"
    job = left[0].result()
    assert (job.id, job.task, job.queue, job.attempt) == (stored.id, "first", "default", 0)
    assert (job.key, job.tenant) == ("k", "t")
    assert current_job() is None


async def test_attempts_are_counted_as_the_job_counts_them() -> None:
    app = App("memory://")
    seen: list[tuple[int, int]] = []

    @app.task(retry=exponential(3, base=0))
    async def unsteady(job: Job[Any]) -> Retry | None:
        current = current_job()
        assert current is not None
        seen.append((job.attempt, current.attempt))
        return Retry(0) if job.attempt < 2 else None

    async with app:
        await unsteady.enqueue()
        await app.drain()
    assert seen == [(0, 0), (1, 1), (2, 2)]


async def test_in_a_batch_of_several_there_is_no_current_job() -> None:
    app = App("memory://", worker={"concurrency": 1})
    seen: list[tuple[int, bool]] = []

    @app.batch(name="many")
    async def many(jobs: list[Job[int]]) -> None:
        seen.append((len(jobs), current_job() is None))

    async with app:
        await app.enqueue_many(many.job(n) for n in range(3))
        await app.drain()
        await many.enqueue(1)
        await app.drain()
    assert seen == [(3, True), (1, False)]


async def test_a_failure_is_logged_without_any_observer(caplog: pytest.LogCaptureFixture) -> None:
    """A worker inside a program of yours tells of failures too."""
    app = App("memory://")

    @app.task(name="hurt", retry=never())
    async def hurt() -> None:
        raise RuntimeError("the bank is closed")

    @app.task(name="fine")
    async def fine() -> None: ...

    async with app:
        await hurt.enqueue()
        await fine.enqueue()
        await app.drain()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("failed hurt ")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


def test_a_log_that_fails_keeps_no_observer_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise OSError("no space left on device")

    observers = Observers(broken)
    observers.add(heard.append)
    observers.tell(Event(EventKind.FAILED))
    assert [event.kind for event in heard] == [EventKind.FAILED]
    assert [record.getMessage() for record in caplog.records] == ["an observer raised on failed"]


async def test_a_worker_adds_the_fields_to_handlers_that_are_there() -> None:
    app = App("memory://")
    records: list[logging.LogRecord] = []

    class Mine(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    log, mine = logging.getLogger("tests.current"), Mine()
    log.addHandler(mine)

    @app.task(name="talk")
    def talk() -> None:
        log.warning("hello")

    try:
        async with app:
            stored = await talk.enqueue()
            await app.drain()
            await talk.enqueue()
            await app.drain()
        log.warning("outside")
    finally:
        log.removeHandler(mine)
    assert [getattr(record, "task", None) for record in records] == ["talk", "talk", None]
    assert records[0].__dict__["job_id"] == str(stored.id)
    assert sum(isinstance(one, JobFields) for one in mine.filters) == 1
