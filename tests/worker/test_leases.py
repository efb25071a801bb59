"""A worker keeps the leases of what it runs, and lets go of what it has lost."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import App, EventKind, Job, JobState
from headrace.seam.protocol import Backend
from headrace.seam.records import Beat, Claim, Reap
from tests.worker import handlers
from tests.worker.conftest import Told, working

LEASE = 0.5
Handlers = list[tuple[Callable[..., Any], Any]]
"""Each with the executor that it asks for."""


@contextmanager
def reaping(store: Backend) -> Iterator[None]:
    """Another process's reaper, in a thread of its own, for as long as the block lasts. If the whole machine stood
    still, so did its own beats, and it takes nothing."""
    stop = threading.Event()

    async def reap() -> None:
        sibling = store.sibling()
        await sibling.open()
        gap, steady = int(LEASE / 5 * 1e6), int(LEASE / 2 * 1e6)
        while not stop.is_set():
            await sibling.renew(Beat("reaper", "reaper", (), int(LEASE * 1e6), gap=gap))
            await sibling.reap(Reap(holder="reaper", gap=gap, steady=steady))
            await asyncio.sleep(0.02)
        await sibling.close()

    thread = threading.Thread(target=lambda: asyncio.run(reap()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def note(log: str) -> None:
    """One line for each run, from whichever process."""
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()}\n")


def spin_and_note(seconds: float, log: str) -> None:
    note(log)
    handlers.spin(seconds)


def block_and_note(seconds: float, log: str) -> None:
    note(log)
    time.sleep(seconds)


async def sleep_and_note(seconds: float, log: str) -> None:
    note(log)
    await asyncio.sleep(seconds)


async def async_block_and_note(seconds: float, log: str) -> None:
    block_and_note(seconds, log)


async def async_spin_and_note(seconds: float, log: str) -> None:
    spin_and_note(seconds, log)


BESIDE: Handlers = [
    (sleep_and_note, None), (block_and_note, "thread"), (spin_and_note, "thread"), (spin_and_note, "process")
]  # fmt: skip
"""Those that leave the worker's loop alone."""


@pytest.mark.parametrize(
    "handlers", [BESIDE, [(async_block_and_note, None)], [(async_spin_and_note, None)]], ids=["beside", "block", "spin"]
)
async def test_a_handler_ten_times_longer_than_its_lease_keeps_it(
    make_app: Callable[..., App], store: Backend, handlers: Handlers, tmp_path: Path
) -> None:
    """corner-cases 5.3.3, F24: the heartbeat has a thread and a connection of its own."""
    app = make_app(lease=f"{LEASE}s", reap="1h")
    told = Told()
    app.observe(told)
    tasks = [
        app.task(name=f"task-{number}", executor=executor)(handler)
        for number, (handler, executor) in enumerate(handlers)
    ]
    logs = [tmp_path / f"{number}.txt" for number in range(len(tasks))]
    with reaping(store):
        async with working(app):
            handles = [await task.enqueue(10 * LEASE, str(log)) for task, log in zip(tasks, logs, strict=True)]
            infos = []
            for handle in handles:
                await handle.result("60s")
                infos.append(await handle.info())
    assert [(info.state, info.attempt, info.lost) for info in infos] == [(JobState.COMPLETED, 0, 0)] * len(tasks)
    assert EventKind.LEASE_LOST not in told.kinds()
    for (_, executor), log in zip(handlers, logs, strict=True):
        [pid] = log.read_text().split()
        assert (int(pid) != os.getpid()) is (executor == "process")


async def test_a_worker_whose_lease_was_taken_is_told_and_its_handler_cancelled(
    make_app: Callable[..., App], store: Backend
) -> None:
    """corner-cases 5.3.2: the zombie's outcome is refused and visible."""
    app = make_app(lease="2s", reap="1h")
    told = Told()
    app.observe(told)
    started, cancelled = asyncio.Event(), asyncio.Event()

    @app.task
    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with working(app):
        handle = await endless.enqueue()
        await started.wait()
        backend = await app.client.backend()
        far = 2 * 10**15
        await backend.reap(Reap(), far)
        taken = await backend.claim(Claim("thief", ("default",), 1, 60_000_000), far)
        assert len(taken.jobs) == 1
        async with asyncio.timeout(60):
            await cancelled.wait()
        await told.wait_for(EventKind.LEASE_LOST)
        assert (await handle.info()).state is JobState.RUNNING


async def test_an_outcome_that_comes_too_late_is_refused(make_app: Callable[..., App], store: Backend) -> None:
    app = make_app(lease="60s")
    told = Told()
    app.observe(told)
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        started.set()
        await go_on.wait()
        return "stale"

    async with working(app):
        handle = await slow.enqueue()
        await started.wait()
        backend = await app.client.backend()
        far = 2 * 10**15
        await backend.reap(Reap(), far)
        await backend.claim(Claim("thief", ("default",), 1, 60_000_000), far)
        go_on.set()
        event = await told.wait_for(EventKind.LEASE_LOST)
        assert event.job_id == handle.id
        assert (await handle.info()).state is JobState.RUNNING


async def test_a_cancelled_job_stops_its_handler(make_app: Callable[..., App]) -> None:
    app = make_app(lease="30s", reap="5s")
    told = Told()
    app.observe(told)
    started = asyncio.Event()
    reasons = []

    @app.task
    async def endless(job: Job[object]) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(job.cancel.reason)

    async with working(app):
        handle = await endless.enqueue()
        await started.wait()
        assert await handle.cancel() is JobState.RUNNING
        await told.wait_for(EventKind.CANCELLED)
    assert reasons == ["cancelled"]
    async with app:
        info = await handle.info()
    assert (info.state, info.attempt) == (JobState.CANCELLED, 0)


async def test_a_thread_handler_sees_that_it_should_stop(make_app: Callable[..., App]) -> None:
    app = make_app()
    told = Told()
    app.observe(told)
    started = threading.Event()
    seen = threading.Event()

    @app.task(timeout="100ms", retry=None)
    def stubborn(job: Job[object]) -> None:
        started.set()
        if job.cancel.wait(60):
            seen.set()

    async with working(app):
        handle = await stubborn.options(max_attempts=1).enqueue()
        await told.wait_for(EventKind.FAILED)
    assert seen.wait(60)
    async with app:
        info = await handle.info()
    assert info.failures[-1].type == "TimeoutError"


async def test_a_worker_is_listed_for_one_lease_after_its_last_heartbeat(make_app: Callable[..., App]) -> None:
    """So that whoever asks who is alive gets one answer, and that by the store's clock."""
    app, second = make_app(lease="30s"), 1_000_000

    @app.task
    async def idle() -> None: ...

    async with asyncio.timeout(60), working(app):
        backend = await app.client.backend()
        while not (listed := (await backend.stats()).workers):
            await asyncio.sleep(0.01)
        seen = listed[0].seen_at
        assert (await backend.stats(seen + 29 * second)).workers
        assert not (await backend.stats(seen + 45 * second)).workers
