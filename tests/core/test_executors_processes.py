"""What comes back from a child process, and what becomes of it when its parent is gone."""

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
from headrace.config import PayloadSettings
from headrace.core.clock import ManualClock
from headrace.core.executors import ProcessExecutor, function_path
from headrace.core.ids import IdMaker
from headrace.core.judge import GAVE_UP, Judge, failures
from headrace.core.payloads import Packer
from headrace.errors import Stop
from headrace.records import Leased, Limits
from headrace.types import Again

DEADLINE = 30.0
ROOT = Path(__file__).parents[2]


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


PARENT = f"""
import asyncio
import os
from headrace.core.executors import ProcessExecutor

async def main():
    processes = ProcessExecutor()
    print(await asyncio.gather(*(processes.run("os:getpid", (), {{}}) for _ in range(2))), flush=True)
    await processes.run("{__name__}:wait_for_ever", (), {{}})

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_children_do_not_outlive_a_parent_that_is_killed() -> None:
    """One that runs a job, one that is idle, and the helper that Python itself starts. They all have inherited the pipe
    that the parent prints to: it ends when the last of them has."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
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
        try:
            os.killpg(parent.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
