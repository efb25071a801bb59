"""Code that blocks goes straight to the store, on whatever thread, without a loop, and gets the same answers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace import App, JobState, SyncApp
from headrace.errors import JobNotFound, QueueFull, WaitTimeout
from tests.facades.harness import STORES, Store

DURABLE = [kind for kind in STORES if kind != "memory"]
NOBODY = "01900000-0000-7000-8000-000000000000"


@pytest.fixture(params=DURABLE)
def app(request: Any, tmp_path: Path) -> App:
    app = Store(request.param, tmp_path).app()
    with SyncApp(app):  # the store is made on a loop
        pass
    return app


def loops() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-sync"]


def test_one_job_from_its_enqueue_to_its_result_without_a_loop(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    jobs = SyncApp(app)
    handle, other = double.enqueue_sync(21), jobs.enqueue(double, 1)
    assert handle.info().state is JobState.AVAILABLE
    assert other.cancel() is JobState.CANCELLED
    assert jobs.cancel(other.id) is JobState.CANCELLED
    assert jobs.get(other.id).state is JobState.CANCELLED
    with pytest.raises(JobNotFound):
        jobs.get(NOBODY)
    with pytest.raises(JobNotFound):
        jobs.cancel(NOBODY)
    assert not loops()
    jobs.drain()
    assert handle.result(0) == jobs.wait(handle.id) == 42
    assert not loops()
    jobs.close()


def test_what_has_not_ended_is_waited_for_on_a_loop(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    with SyncApp(app) as jobs:
        handle = jobs.enqueue(double, 1)
        with pytest.raises(WaitTimeout):
            handle.result(0)


def test_a_key_is_taken_once_by_many_threads(app: App) -> None:
    @app.task
    def once(n: int) -> None: ...

    with SyncApp(app) as jobs, ThreadPoolExecutor(8) as threads:
        keyed = once.options(key="only")
        handles = list(threads.map(lambda n: jobs.enqueue(keyed, n), range(40)))
        assert len({handle.id for handle in handles}) == 1
        assert sum(not handle.duplicate for handle in handles) == 1
        [queue] = jobs.stats().queues
        assert queue.available == 1


def test_a_queue_that_is_full_is_refused_as_ever(app: App) -> None:
    @app.task(queue="narrow")
    def work(n: int) -> None: ...

    with SyncApp(app) as jobs:
        jobs.wait_for(app.policies.set("narrow", depth=2))
        handles = [work.enqueue_sync(n) for n in range(2)]
        with pytest.raises(QueueFull):
            work.enqueue_sync(3)
        assert handles[0].cancel() is JobState.CANCELLED
        assert not work.enqueue_sync(4).duplicate


def test_observers_hear_of_it_on_a_loop(app: App) -> None:
    @app.task
    def work(n: int) -> None: ...

    heard: list[str] = []
    app.observe(lambda event: heard.append(threading.current_thread().name))
    with SyncApp(app) as jobs:
        jobs.enqueue(work, 1)
    assert heard == ["headrace-sync"]
