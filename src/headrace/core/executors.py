"""Where plain functions run: a thread or a process for each job under way."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from functools import partial
from importlib import import_module
from multiprocessing import get_context, parent_process
from multiprocessing.reduction import ForkingPickler
from typing import Any

from headrace.core.raised import ChildTraceback, Raised, carried, raised
from headrace.errors import ConfigError


class ThreadExecutor:
    """Threads that are reused while they return. One whose job was given up on is left behind and ends by itself."""

    def __init__(self) -> None:
        self._idle: list[_Lane] = []

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run ``call`` in a thread, with this task's context variables."""
        lane = self._idle.pop() if self._idle else _Lane()
        try:
            value = await lane.run(partial(copy_context().run, call))
        except asyncio.CancelledError:
            lane.leave()
            raise
        except BaseException:
            self._idle.append(lane)
            raise
        self._idle.append(lane)
        return value

    async def close(self) -> None:
        """Let the idle threads end."""
        for lane in self._idle:
            lane.leave()
        self._idle.clear()


class _Lane:
    """One thread and its inbox."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._main, name="headrace-thread", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return future

    def leave(self) -> None:
        self._calls.put(None)

    def _main(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            try:
                value, error = call(), None
            except BaseException as problem:
                value, error = None, problem
            try:
                future.get_loop().call_soon_threadsafe(_answer, future, value, error)
            except RuntimeError:  # the loop is gone: nobody waits any more
                return
            del item, call, future, value, error


def _answer(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(carried(error))


class ProcessExecutor:
    """Processes that are reused while they return. One whose job was given up on is killed; one that dies fails its own
    job and no other. They are spawned, never forked: the parent has threads. None outlives the parent."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []

    async def run(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function at ``module:qualname`` in a process."""
        child = self._idle.pop() if self._idle else _Child()
        try:
            answer = await child.run(function, args, kwargs)
        except asyncio.CancelledError:
            child.kill()
            raise
        except BrokenProcessPool:
            child.kill()
            raise RuntimeError(f"the process that ran {function} died") from None
        except BaseException:
            self._idle.append(child)
            raise
        self._idle.append(child)
        if isinstance(answer, Raised):
            raise answer.error() from ChildTraceback(answer.trace)
        try:
            return ForkingPickler.loads(answer)
        except Exception as error:
            raise TypeError(f"what {function} returned cannot be read in another process: {error}") from error

    async def close(self) -> None:
        """End the idle processes."""
        for child in self._idle:
            child.kill()
        self._idle.clear()


class _Child:
    """A process pool of one, so that its process can be told apart and killed."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin)
        self._pid: int | None = None

    async def run(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | Raised:
        loop = asyncio.get_running_loop()
        if self._pid is None:
            self._pid = await loop.run_in_executor(self._pool, os.getpid)
        return await loop.run_in_executor(self._pool, partial(_call, function, args, kwargs))

    def kill(self) -> None:
        if self._pid is not None:
            try:
                os.kill(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._pool.shutdown(wait=False, cancel_futures=True)


def function_path(function: Callable[..., Any]) -> str:
    """Where a child process finds the function; raises if it could not."""
    path = f"{function.__module__}:{function.__qualname__}"
    if "<" in path or function.__module__ == "__main__":
        raise ConfigError(f"{path} cannot be imported by another process; define it at the top of a module")
    return path


# -- in the child


def _begin() -> None:
    """Leave an interrupt from the terminal to the parent, which knows about grace, and end with it. Nothing else tells
    a child that its parent was killed: it holds both ends of the pipe that it waits at."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="headrace-parent", daemon=True).start()


def _call(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | Raised:
    """What came of the call. Only bytes and plain data leave the child: what the pool itself cannot read in the parent,
    it takes for the death of the child."""
    try:
        module, _, qualname = function.partition(":")
        found: Any = import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
        value = getattr(found, "function", found)(*args, **kwargs)
        try:
            return bytes(ForkingPickler.dumps(value))
        except Exception as error:
            raise TypeError(f"what {function} returned cannot be sent to another process: {error}") from error
    except BaseException as error:
        return raised(error)
