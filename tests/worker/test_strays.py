"""Threads of handlers that were given up on: bounded, counted, told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, EventKind, Job, Queue, immediate
from headrace.core.alerts import Alert
from headrace.worker.health import Health
from tests.worker.conftest import Told, working


class Dam:
    """What handlers hang at until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.now = self.most = 0

    def hang(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self._open.wait(60)
        with self._lock:
            self.now -= 1

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def dam() -> Any:
    dam = Dam()
    yield dam
    dam.open()


def health(app: App) -> Health:
    assert app.worker is not None
    return app.worker.health()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_threads_of_timed_out_handlers_are_bounded(make_app: Callable[..., App], dam: Dam) -> None:
    app = make_app(concurrency=2)
    told = Told()
    app.observe(told)

    @app.task(timeout="20ms", retry=immediate(1))
    def stuck() -> None:
        dam.hang()

    @app.task
    async def fine() -> int:
        return 7

    async with working(app):
        await app.enqueue_many(stuck.job() for _ in range(40))
        await until(lambda: health(app).strays >= 8)
        later = await fine.enqueue()
        assert not health(app).ok
        assert "nothing is claimed until some of them end" in health(app).detail
        await until(lambda: health(app).busy == 0)
        strays = health(app).strays
        assert 8 <= strays <= 8 + 2
        assert dam.most <= 8 + 2
        dam.open()
        assert await later.result("30s") == 7
        await until(lambda: health(app).ok and health(app).detail == "ok")
    [alert] = [event for event in told.events if event.alert == Alert.TOO_MANY_THREADS]
    assert "8 threads" in alert.detail


async def test_a_thread_that_stays_is_told_of_by_its_task(dam: Dam, caplog: pytest.LogCaptureFixture) -> None:
    app = App("memory://", worker={"concurrency": 4})
    told = Told()
    app.observe(told)

    @app.task(name="stuck", timeout="20ms", retry=immediate(1))
    def stuck() -> None:
        dam.hang()

    async with working(app):
        handle = await stuck.enqueue()
        alert = await told.wait_for(EventKind.ALERT)
        assert (alert.alert, alert.task) == ("thread_left_behind", "stuck")
        assert (health(app).ok, health(app).strays) == (True, 1)
        assert health(app).detail == "ok; 1 thread goes on whose job was given up on"
        [failure] = (await handle.info()).failures
        assert failure.message.endswith(" s; its thread goes on until it returns")
        dam.open()
        await until(lambda: health(app).strays == 0)
    assert "thread_left_behind: a job of task 'stuck' was given up on" in caplog.text


async def test_a_thread_that_obeys_is_nothing_to_tell_of(caplog: pytest.LogCaptureFixture) -> None:
    app = App("memory://")

    @app.task(timeout="20ms", retry=immediate(1))
    def obedient(job: Job[None]) -> None:
        job.cancel.wait(60)

    @app.task(timeout="20ms", retry=immediate(1))
    async def cancelled() -> None:
        await asyncio.sleep(60)

    async with working(app):
        await obedient.enqueue()
        handle = await cancelled.enqueue()
        await until(lambda: health(app).strays == 0 and health(app).busy == 0)
        await asyncio.sleep(1.1)  # an alert would come after a second
    async with app:
        assert "cancelled after" in (await handle.info()).failures[0].message
    assert "thread_left_behind" not in caplog.text


async def test_threads_of_a_queue_are_counted_beyond_its_workers(dam: Dam) -> None:
    queue = Queue[int, int]("squares", "memory://", timeout="20ms", max_attempts=1)

    @queue.execute
    def square(job: Job[int]) -> int:
        dam.hang()
        return 1

    async with queue:
        await queue.enqueue("1", 1)
        await until(lambda: queue._worker is not None and queue._worker.health().strays == 1)
    async with queue:
        assert queue._worker is not None
        assert queue._worker.health().strays == 1
        dam.open()
        await until(lambda: queue._worker is not None and queue._worker.health().strays == 0)
