"""Code that blocks goes straight to the store, on whatever thread, without a loop, and gets the same answers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace import App, JobState, Queue, SyncApp, SyncQueue
from headrace.api.queue_answers import Duplicate, Queued
from headrace.errors import JobNotFound, QueueFull, UnknownTask, WaitTimeout
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


def test_many_jobs_without_a_loop(app: App) -> None:
    @app.task
    def double(n: int, text: str = "") -> int:
        return 2 * n

    jobs = SyncApp(app)
    handles = jobs.enqueue_many([double.job(n, "x" * 2_000) for n in range(1_500)])
    named = jobs.enqueue_named(double.name, {"n": 21}, queue="elsewhere")
    assert named.info().queue == "elsewhere"
    assert not loops()
    assert len({handle.id for handle in handles}) == 1_500
    assert not any(handle.duplicate for handle in handles)
    with pytest.raises(UnknownTask):
        jobs.enqueue_named("tripel", {})
    assert sum(queue.available for queue in jobs.stats().queues) == 1_501
    jobs.drain(["default"])
    assert handles[-1].result(0) == 2_998
    jobs.close()


def test_many_jobs_of_which_some_find_no_room_are_stored_once(app: App) -> None:
    @app.task(queue="narrow")
    def work(n: int, text: str = "") -> None: ...

    with SyncApp(app) as jobs:
        jobs.wait_for(app.policies.set("narrow", depth=1_200))
        with pytest.raises(QueueFull):
            jobs.enqueue_many([work.job(n, "x" * 2_000) for n in range(1_300)])
        [queue] = jobs.stats().queues
        assert queue.available == 1_200


def test_a_queue_without_a_loop(app: App) -> None:
    queue = Queue[str, int]("lengths", app.client.settings.url)
    lengths = SyncQueue(queue)
    for text in ("cat", "c" * 200_000):
        assert lengths.enqueue(text[:3] + str(len(text)), text) == Queued()
    assert isinstance(lengths.enqueue("cat3", "cat"), Duplicate)
    status = lengths.status("cat3")
    assert status is not None
    assert status.state == "queued"
    assert (lengths.result("cat3"), lengths.cancel("cat3"), lengths.cancel("dog")) == (None, "cancelled", "not_found")
    assert not loops()
    lengths.close()


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
