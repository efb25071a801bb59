"""Threads and processes for plain functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.worker.executors import ThreadExecutor, function_path

COLOUR: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture
async def threads() -> AsyncIterator[ThreadExecutor]:
    threads = ThreadExecutor()
    yield threads
    await threads.close()


async def test_values_and_errors_come_back(threads: ThreadExecutor) -> None:
    assert await threads.run(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)


async def test_a_thread_is_used_again(threads: ThreadExecutor) -> None:
    idents = {await threads.run(threading.get_ident) for _ in range(10)}
    assert len(idents) == 1
    assert threading.get_ident() not in idents


async def test_as_many_threads_as_are_needed(threads: ThreadExecutor) -> None:
    barrier = threading.Barrier(20, timeout=60)
    assert sorted(await asyncio.gather(*(threads.run(barrier.wait) for _ in range(20)))) == list(range(20))


@pytest.mark.parametrize("error", [StopIteration(1), asyncio.CancelledError("x"), GeneratorExit()], ids=repr)
async def test_errors_that_cannot_travel_are_told_all_the_same(threads: ThreadExecutor, error: BaseException) -> None:
    """Not as what they are: a ``StopIteration`` or a cancellation would be taken for the loop's own."""

    def broken() -> None:
        raise error

    with pytest.raises(Exception, match=type(error).__name__):
        await asyncio.wait_for(threads.run(broken), 60)
    assert await threads.run(lambda: 1) == 1


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt], ids=str)
async def test_an_exit_in_a_thread_is_an_error_like_any_other(
    threads: ThreadExecutor, kind: type[BaseException]
) -> None:
    """It does not come out of the future as an exit, which would end the loop."""

    def leave() -> None:
        raise kind("leaving")

    came_out = await asyncio.wait_for(_raised(threads, leave), 60)
    assert isinstance(came_out, Exception)
    assert "leaving" in str(came_out)


async def _raised(threads: ThreadExecutor, call: Any) -> BaseException | None:
    try:
        await threads.run(call)
    except BaseException as error:
        return error
    return None


async def test_context_variables_go_in_and_do_not_come_out(threads: ThreadExecutor) -> None:
    COLOUR.set("blue")

    def paint() -> str:
        before = COLOUR.get()
        COLOUR.set("red")
        return before

    assert [await threads.run(paint) for _ in range(2)] == ["blue", "blue"]
    assert COLOUR.get() == "blue"


async def test_a_thread_that_was_given_up_on_is_not_used_again(threads: ThreadExecutor) -> None:
    entered, release = threading.Event(), threading.Event()
    ident: list[int] = []

    def blocks() -> None:
        ident.append(threading.get_ident())
        entered.set()
        release.wait(60)

    running = asyncio.ensure_future(threads.run(blocks))
    await asyncio.to_thread(entered.wait, 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await threads.run(threading.get_ident) != ident[0]
    release.set()


async def test_threads_end_when_closed() -> None:
    threads = ThreadExecutor()
    thread: Any = await threads.run(threading.current_thread)
    await threads.close()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


def test_a_loop_that_has_gone_is_no_trouble() -> None:
    """A thread that outlives its loop ends quietly."""
    entered, release = threading.Event(), threading.Event()
    thread: list[threading.Thread] = []

    def blocks() -> None:
        thread.append(threading.current_thread())
        entered.set()
        release.wait(60)

    async def main() -> None:
        running = asyncio.ensure_future(ThreadExecutor().run(blocks))
        await asyncio.to_thread(entered.wait, 60)
        running.cancel()

    asyncio.run(main())
    release.set()
    thread[0].join(60)
    assert not thread[0].is_alive()


def test_functions_that_a_child_could_not_find() -> None:
    def local() -> None: ...

    assert function_path(test_a_loop_that_has_gone_is_no_trouble).startswith("tests.unit.test_executors:")
    for function in (lambda: None, local):
        with pytest.raises(ConfigError, match="top of a module"):
            function_path(function)
