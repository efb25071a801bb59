"""What comes back from a child process, what it does not do, and what becomes of it when its parent is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace import exponential
from headrace.core.clock import ManualClock
from headrace.core.config import PayloadSettings
from headrace.core.ids import IdMaker
from headrace.errors import Stop
from headrace.payloads.pack import Packer
from headrace.seam.records import Leased, Limits
from headrace.types import Again
from headrace.worker.executors import ProcessExecutor, function_path
from headrace.worker.failures import failures
from headrace.worker.judge import GAVE_UP, Judge

DEADLINE = 60.0
ROOT = Path(__file__).parents[2]

linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="only there can a process be watched, not just its line"
)


class HttpError(Exception):
    """Cannot be made again from its ``args``."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class Prefixed(Exception):
    """Can be made again from its ``args``, but then says something else."""

    def __init__(self, text: str) -> None:
        super().__init__(f"prefixed: {text}")


class Locked(Exception):
    """Holds something that no other process can have."""

    def __init__(self, text: str) -> None:
        super().__init__(text, threading.Lock())
        self.lock = self.args[1]
        self.code = 5

    def __str__(self) -> str:
        return str(self.args[0])


class Exclusive(Exception):
    """Wants no subclasses."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")

    def __init_subclass__(cls) -> None:
        raise TypeError("no")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Whole(ValueError):
    pass


class Unreadable:
    """Leaves a process, and enters none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("five",)


def raise_http_error() -> None:
    raise HttpError(503, "try later")


def raise_prefixed() -> None:
    raise Prefixed("a")


def raise_locked() -> None:
    raise Locked("a lock")


def raise_local() -> None:
    class Local(HttpError):
        pass

    raise Local(404, "nowhere")


def raise_exclusive() -> None:
    raise Exclusive(1, "alone")


def raise_unspeakable() -> None:
    raise Unspeakable


def raise_whole() -> None:
    raise Whole("a", 1) from KeyError("the reason")


def raise_group() -> None:
    raise ExceptionGroup("many", [HttpError(503, "try later")])


def raise_stop_iteration() -> None:
    raise StopIteration(5)


def raise_cancelled() -> None:
    raise asyncio.CancelledError("mine")


def leave() -> None:
    sys.exit("leaving")


def stop() -> None:
    raise Stop(Again("5s"))


def return_unreadable() -> Unreadable:
    return Unreadable()


def return_lock() -> Any:
    return threading.Lock()


def wait_for_ever() -> None:
    os.write(1, b"waiting\n")
    threading.Event().wait()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fork_and_die(note: str) -> None:
    """Leave a process behind that has all that this one had open."""
    if pid := os.fork():
        Path(note).write_text(str(pid))
        os._exit(3)
    os.closerange(0, 3)
    threading.Event().wait()


def interrupt() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "not at all"


def surroundings() -> tuple[list[str], list[str], str]:
    return sys.path, sys.argv, sys.stdin.read()


class HereOnly:
    """Can be made in no other process than that of its making."""

    def __init__(self, pid: int) -> None:
        if pid != os.getpid():
            raise ValueError("not here")
        self.pid = pid

    def __reduce__(self) -> tuple[Any, ...]:
        return HereOnly, (self.pid,)


@pytest.fixture
async def processes() -> AsyncIterator[ProcessExecutor]:
    processes = ProcessExecutor()
    yield processes
    await processes.close()


async def run(processes: ProcessExecutor, function: Callable[..., Any]) -> Any:
    async with asyncio.timeout(DEADLINE):
        return await processes.run(function_path(function), (), {})


async def raised(processes: ProcessExecutor, function: Callable[..., Any]) -> Exception:
    """What the function raised; the child that it ran in must be as well as before."""
    child = await run(processes, os.getpid)
    with pytest.raises(Exception) as caught:
        await run(processes, function)
    assert await run(processes, os.getpid) == child
    return caught.value


@pytest.mark.parametrize(
    ("function", "kind", "name", "text"),
    [
        (raise_whole, Whole, "Whole", "('a', 1)"),
        (raise_http_error, HttpError, "HttpError", "503 try later"),
        (raise_prefixed, Prefixed, "Prefixed", "prefixed: a"),
        (raise_locked, Locked, "Locked", "a lock"),
        (raise_local, HttpError, "raise_local.<locals>.Local", "404 nowhere"),
        (raise_exclusive, Exception, "Exclusive", "1 alone"),
        (raise_unspeakable, Unspeakable, "Unspeakable", "<Unspeakable that cannot be shown>"),
        (raise_group, Exception, "ExceptionGroup", "many (1 sub-exception)"),
        (raise_stop_iteration, RuntimeError, "RuntimeError", "the handler raised StopIteration(5)"),
        (raise_cancelled, RuntimeError, "RuntimeError", "the handler raised CancelledError('mine')"),
        (leave, RuntimeError, "RuntimeError", "the handler raised SystemExit('leaving')"),
    ],
)
async def test_any_error_comes_back_from_a_child_that_lives_on(
    processes: ProcessExecutor, function: Callable[[], None], kind: type[Exception], name: str, text: str
) -> None:
    """As what it is, as far as ``retry_on`` and ``give_up_on`` ask; and a stored failure tells all of it."""
    error = await raised(processes, function)
    assert isinstance(error, kind)
    clock, rng = ManualClock(), Random(1)
    judge = Judge("h", Packer(PayloadSettings(), Limits(), IdMaker(clock, rng)), clock, rng)
    leased = Leased(id=b"i" * 16, queue="q", task="t", cells={}, epoch=1)
    settlement = judge.raised(leased, exponential(give_up_on=(kind,)), error)
    assert settlement.reason == GAVE_UP
    [failure] = failures(settlement.error)
    assert (failure.type, failure.message) == (name, text)
    assert f"in {function.__name__}" in failure.traceback


async def test_the_reasons_of_an_error_are_in_its_traceback(processes: ProcessExecutor) -> None:
    error = await raised(processes, raise_whole)
    assert error.args == ("a", 1)
    assert "KeyError: 'the reason'" in "".join(traceback.format_exception(error))


async def test_what_an_error_carries_comes_along_where_it_can(processes: ProcessExecutor) -> None:
    for function, code in ((raise_http_error, 503), (raise_local, 404), (raise_locked, 5)):
        error: Any = await raised(processes, function)
        assert error.code == code
        assert not hasattr(error, "lock")


async def test_an_outcome_can_be_raised(processes: ProcessExecutor) -> None:
    error = await raised(processes, stop)
    assert isinstance(error, Stop)
    assert error.outcome == Again("5s")


@pytest.mark.parametrize(("function", "words"), [(return_unreadable, "be read"), (return_lock, "be sent")])
async def test_a_value_that_cannot_travel_is_an_error(
    processes: ProcessExecutor, function: Callable[[], Any], words: str
) -> None:
    error = await raised(processes, function)
    assert f"{function.__name__} returned cannot {words}" in str(error)


@pytest.mark.parametrize(("value", "words"), [(threading.Lock(), "be sent"), (HereOnly(os.getpid()), "be read")])
async def test_an_argument_that_cannot_travel_is_an_error(
    processes: ProcessExecutor, value: object, words: str
) -> None:
    child = await run(processes, os.getpid)
    with pytest.raises(TypeError, match=f"the arguments of builtins:id cannot {words}"):
        await processes.run("builtins:id", (value,), {})
    assert await run(processes, os.getpid) == child


# -- children that die


async def test_a_child_that_dies_fails_its_own_job_and_no_other(processes: ProcessExecutor) -> None:
    async with asyncio.timeout(DEADLINE):
        dead, alive = await asyncio.gather(run(processes, die), run(processes, os.getpid), return_exceptions=True)
    assert str(dead) == f"the process that ran {__name__}:die died: signal 9, Killed"
    assert isinstance(dead, RuntimeError)
    assert await run(processes, os.getpid) == alive


@linux_only
async def test_a_death_is_noticed_although_another_process_holds_the_line(
    processes: ProcessExecutor, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    try:
        with pytest.raises(RuntimeError, match="died: exit code 3"):
            async with asyncio.timeout(DEADLINE):
                await processes.run(f"{__name__}:fork_and_die", (str(note),), {})
    finally:
        os.kill(int(note.read_text()), signal.SIGKILL)


async def test_a_child_that_died_idle_is_not_used_again(processes: ProcessExecutor) -> None:
    child = await run(processes, os.getpid)
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
    assert await run(processes, os.getpid) != child


async def test_a_child_whose_job_is_cancelled_is_gone_when_all_is_closed() -> None:
    """Reaped, too: no zombie is left."""
    processes = ProcessExecutor()
    children = set(await asyncio.gather(*(run(processes, os.getpid) for _ in range(2))))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await processes.run("signal:pause", (), {})
    assert await run(processes, os.getpid) in children
    await processes.close()
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# -- what a child is, and is not


async def test_an_interrupt_is_left_to_the_parent(processes: ProcessExecutor) -> None:
    assert await run(processes, interrupt) == "not at all"


async def test_a_child_has_its_parents_path_and_arguments_and_no_input(processes: ProcessExecutor) -> None:
    path, argv, said = await run(processes, surroundings)
    assert (path, argv, said) == ([entry or os.getcwd() for entry in sys.path], sys.argv, "")


async def test_processes_need_no_threads(processes: ProcessExecutor) -> None:
    before = set(threading.enumerate())
    await asyncio.gather(*(run(processes, os.getpid) for _ in range(3)))
    assert set(threading.enumerate()) <= before


async def test_large_values_travel(processes: ProcessExecutor) -> None:
    text = "x" * 5_000_000
    assert await processes.run("builtins:str", (text,), {}) == text


def test_on_uvloop() -> None:
    import uvloop

    async def main() -> None:
        processes = ProcessExecutor()
        child = await run(processes, os.getpid)
        await test_large_values_travel(processes)
        await test_a_child_that_dies_fails_its_own_job_and_no_other(processes)
        assert await run(processes, os.getpid) != child
        await processes.close()
        await test_a_child_whose_job_is_cancelled_is_gone_when_all_is_closed()

    uvloop.run(main())


TASKS = """
from headrace import App

app = App("memory://")

@app.task(executor="process")
def told(what: str) -> None:
    print(f"told {what}")
"""
SCRIPT = """
import asyncio
from tasks import app, told

print("the script runs", flush=True)

async def main():
    async with app:
        jobs = [await told.enqueue("this") for _ in range(3)]
        await app.drain()
        print({(await job.info()).state.value for job in jobs}, flush=True)

asyncio.run(main())
"""


def run_script(directory: Path, text: str) -> tuple[int, str]:
    """Run a file like a user's own; nothing that it has started is left behind. Its exit code, and what was printed."""
    (directory / "script.py").write_text(text)
    script = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = script.communicate(timeout=DEADLINE)
        return script.returncode, printed
    finally:
        kill_group(script)


def kill_group(leader: subprocess.Popen[str]) -> None:
    try:
        os.killpg(leader.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    code, printed = run_script(tmp_path, SCRIPT)
    assert (code, sorted(printed.splitlines())) == (0, sorted(["the script runs", *["told this"] * 3, "{'completed'}"]))


def test_a_function_of_the_script_itself_is_refused(tmp_path: Path) -> None:
    code, printed = run_script(tmp_path, TASKS)
    assert code == 1
    assert "__main__:told: a function of the script that is started directly cannot be imported" in printed
    assert "move it to a module" in printed


# -- parents that die


PARENT = f"""
import asyncio
import os
import threading
from headrace.worker.executors import ProcessExecutor

async def main():
    processes = ProcessExecutor()
    print(await asyncio.gather(*(processes.run("os:getpid", (), {{}}) for _ in range(2))), flush=True)
    if FORKS and not os.fork():
        os.closerange(0, 3)
        threading.Event().wait()
    await processes.run("{__name__}:wait_for_ever", (), {{}})

asyncio.run(main())
"""


@pytest.mark.parametrize("forks", [False, pytest.param(True, marks=linux_only)])
def test_children_do_not_outlive_a_parent_that_is_killed(forks: bool) -> None:
    """One that runs a job, and one that is idle; even if a process that the parent has forked holds the lines to them.
    Both have inherited the pipe that the parent prints to: it ends when the last of them has."""
    program = f"FORKS = {forks}\n{PARENT}"
    parent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    try:
        children = parent.stdout.readline()
        assert len(children.split()) == 2
        assert parent.stdout.readline() == "waiting\n"
        parent.kill()
        assert parent.communicate(timeout=DEADLINE) == ("", None)
    finally:
        parent.stdout.close()
        kill_group(parent)
