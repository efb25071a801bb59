"""Jobs on their last chance run in a process beside the worker's own, which ends with it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import App, JobInfo, JobState
from headrace.cli.helper_process import HelperProcess, helper_name
from headrace.seam.protocol import Backend
from headrace.seam.records import Claim, Move, Reap, Selector
from tests.cli.conftest import Process

Start = Callable[..., Process]
PATIENCE = 60.0
LEASE, GRACE = "3s", "20s"
MODULE = f"""
import asyncio, os, signal, sys
from pathlib import Path
from headrace import App

app = App("sqlite:///jobs.db", worker={{"lease": "{LEASE}", "reap": "200ms", "grace": "{GRACE}", "concurrency": 2}})

@app.task(name="hold")
async def hold(name: str) -> int:
    Path(name).with_suffix(".part").write_text(str(os.getpid()))
    Path(name).with_suffix(".part").rename(name)
    while not Path(name + ".go").exists():
        await asyncio.sleep(0.01)
    return os.getpid()

@app.task(name="die")
async def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def jobs(project: Path) -> App:
    """An app whose jobs tell who runs them; what they wait for, and all files, are in the project."""
    (project / "suspects.py").write_text(MODULE)
    app = App("sqlite:///jobs.db")

    @app.task(name="hold")
    async def hold(name: str) -> int:
        raise AssertionError

    @app.task(name="die")
    async def die() -> None:
        raise AssertionError

    return app


def within(app: App, what: Callable[[Any], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with app:
            return await what(app)

    return asyncio.run(main())


def suspect(app: App, task: str, *arguments: object) -> str:
    """A job on its last chance, before all others; its id."""

    async def lose(app: App) -> str:
        made: Any = app.tasks[task]
        row = app.client.packer.pack(made.options(queue="aside", priority=-1).job(*arguments))
        store: Backend = await app.client.backend()
        now = app.client.clock.now() - 10
        await store.insert([row], now)
        for n in range(2):
            assert len((await store.claim(Claim("gone", ("aside",), 1, 1), now + n)).jobs) == 1
            await store.reap(Reap(max_lost=10), now + n + 1)
        await store.alter(Selector(ids=[row.id]), Move("default"), now + 3)
        return row.id.hex()

    return str(within(app, lose))


def enqueue(app: App, task: str, *arguments: object) -> str:
    async def store(app: App) -> str:
        made: Any = app.tasks[task]
        return str((await made.enqueue(*arguments)).id)

    return str(within(app, store))


def info(app: App, job: str) -> JobInfo:
    found: JobInfo = within(app, lambda app: app.get(job))
    return found


def until(reached: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := reached()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)
    return found


def pid_of(name: str) -> int:
    """Who runs the job of this name, once it runs."""
    until(Path(name).exists, f"job {name} runs")
    return int(Path(name).read_text())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return not Path(f"/proc/{pid}/stat").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except ProcessLookupError:
        return False


def listed(app: App) -> list[tuple[str, int]]:
    """The workers that the store knows, and their slots."""
    stats = within(app, lambda app: app.client.stats())
    return sorted((one.worker, one.slots) for one in stats.workers)


def pair(start: Start, jobs: App, *options: str) -> tuple[Process, int, int]:
    """A worker with a job in one of its slots, and its helper with one on its last chance: the process that was
    started, the worker's own and the helper's."""
    enqueue(jobs, "hold", "one")
    worker = start("worker", "suspects", "--name", "w", *options)
    own = pid_of("one")
    suspect(jobs, "hold", "last")
    return worker, own, pid_of("last")


def parent_of(pid: int) -> int:
    """Whoever has the other job: of two workers, either may start the helper."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def test_it_runs_in_a_process_of_its_own_and_the_worker_goes_on(start: Start, jobs: App) -> None:
    worker, own, other = pair(start, jobs)
    assert own == worker.popen.pid != other
    enqueue(jobs, "hold", "two")
    assert pid_of("two") == own, "no slot was kept free"
    until(lambda: listed(jobs) == [("w", 2), ("w-helper", 1)], "both are on the list")
    Path("last.go").touch()
    until(lambda: not alive(other), "the helper has ended, as there is nothing more for it")
    assert worker.popen.poll() is None
    Path("one.go").touch()
    Path("two.go").touch()
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0


def test_a_crash_is_its_own(start: Start, jobs: App) -> None:
    held = enqueue(jobs, "hold", "one")
    worker = start("worker", "suspects")
    own = pid_of("one")
    killer = suspect(jobs, "die")
    until(lambda: info(jobs, killer).state is JobState.FAILED, "the killer is set aside")
    assert info(jobs, killer).reason == "lost"
    assert (alive(own), worker.popen.poll()) == (True, None)
    assert (info(jobs, held).state, info(jobs, held).lost) == (JobState.RUNNING, 0)
    Path("one.go").touch()
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert any("was killed by SIGKILL" in line for line in worker.lines)


def test_a_stop_lets_both_finish(start: Start, jobs: App) -> None:
    worker, own, other = pair(start, jobs)
    worker.send(signal.SIGTERM)
    os.kill(other, signal.SIGTERM)  # as a manager of services does that signals every process
    worker.text("running jobs may finish")
    worker.text("running jobs may finish")
    Path("one.go").touch()
    worker.event("worker_stopped")
    assert worker.popen.poll() is None, "it waits for its helper"
    Path("last.go").touch()
    assert worker.ended() == 0
    assert not alive(own)
    assert not alive(other)
    stats = within(jobs, lambda app: app.client.stats())
    assert sum(queue.completed for queue in stats.queues) == 2


def test_a_helper_does_not_outlive_its_worker(start: Start, jobs: App) -> None:
    worker, _, other = pair(start, jobs, "--processes", "2")
    os.kill(parent_of(other), signal.SIGKILL)
    worker.text("the process that started this one is gone")
    assert alive(other), "its job may finish"
    Path("last.go").touch()
    until(lambda: not alive(other), "the helper has ended")
    Path("one.go").touch()
    worker.send(signal.SIGTERM)
    worker.ended()


def test_a_second_signal_ends_both_at_once(start: Start, jobs: App) -> None:
    worker, _, other = pair(start, jobs)
    worker.send(signal.SIGTERM)
    worker.text("running jobs may finish")
    worker.text("running jobs may finish")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 128 + signal.SIGTERM
    until(lambda: not alive(other), "the helper has ended")


def test_one_that_cannot_start_is_of_no_use_and_the_worker_makes_room(start: Start, jobs: App, project: Path) -> None:
    enqueue(jobs, "hold", "one")
    worker = start("worker", "suspects")
    own = pid_of("one")
    (project / "suspects.py").write_text("raise RuntimeError('half a deployment')")
    suspect(jobs, "hold", "last")
    worker.text("the helper for jobs on their last chance ended with exit code")
    Path("one.go").touch()
    assert pid_of("last") == own
    Path("last.go").touch()
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0


@pytest.mark.parametrize("options", [("--burst",), ("--concurrency", "1")])
def test_where_it_would_be_of_no_use_there_is_none(start: Start, jobs: App, options: tuple[str, ...]) -> None:
    suspect(jobs, "hold", "last")
    worker = start("worker", "suspects", *options)
    assert pid_of("last") == worker.popen.pid
    Path("last.go").touch()
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0


# -- when one is started


class Scripted(HelperProcess):
    """Helpers that end as soon as the test lets them: with this code, and after jobs on their last chance or not."""

    def __init__(self, *ends: tuple[int, bool]) -> None:
        super().__init__([], lease=10.0, grace=1.0)
        self.ends = list(ends)
        self.started = 0

    async def _run_child(self, line: Any) -> int:
        self.started += 1
        with line:
            code, met = self.ends.pop(0)
            if met:
                line.send(b".")
        return code

    async def over(self) -> None:
        while self._running is not None:
            await asyncio.sleep(0)


async def test_one_at_a_time() -> None:
    helper = Scripted((0, True), (0, True))
    helper.start()
    helper.start()
    await helper.over()
    assert helper.started == 1
    helper.start()
    await helper.over()
    assert (helper.started, helper.useful) == (2, True)


@pytest.mark.parametrize("code", [0, 1, -9])
async def test_one_that_met_none_was_of_no_use(code: int) -> None:
    helper = Scripted((code, False))
    helper.start()
    assert helper.useful
    await helper.over()
    assert not helper.useful


async def test_after_a_crash_there_is_a_pause_longer_each_time() -> None:
    helper = Scripted((-9, True), (1, True), (0, True), (-9, True))
    pauses = []
    for _ in range(3):
        helper._not_before = 0.0
        helper.start()
        await helper.over()
        pauses.append(helper._pause)
    assert (pauses, helper.started, helper.useful) == ([1.0, 2.0, 0.5], 3, True)
    helper._not_before = asyncio.get_running_loop().time() + 60
    helper.start()
    await helper.over()
    assert helper.started == 3


async def test_none_is_started_after_a_stop() -> None:
    helper = Scripted((0, True))
    helper.stop()
    helper.start()
    await helper.close()
    assert helper.started == 0


def test_names() -> None:
    assert helper_name("w") == "w-helper"
    assert len(helper_name("é" * 512).encode()) <= 1_024
