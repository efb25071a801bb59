"""Where plain functions run: a thread or a process for each job under way."""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from multiprocessing.reduction import ForkingPickler
from multiprocessing.spawn import get_executable
from typing import Any

from headrace.errors import ConfigError
from headrace.text import shown
from headrace.worker.child import SIZE, pidfd
from headrace.worker.django import part, tended
from headrace.worker.raised import ChildTraceback, Raised, carried
from headrace.worker.strays import Strays


class ThreadExecutor:
    """Threads that are reused while they return. One whose job was given up on is left behind and ends by itself."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self.strays = Strays()

    async def run(self, call: Callable[[], Any], task: str = "") -> Any:
        """Run ``call``, a job of ``task``, in a thread, with this task's context variables."""
        thread = self._idle.pop() if self._idle else _Thread()
        try:
            value = await thread.run(partial(copy_context().run, tended, call))
        except asyncio.CancelledError:
            thread.leave_behind(self.strays, task)
            raise
        except BaseException:
            self._idle.append(thread)
            raise
        self._idle.append(thread)
        return value

    async def close(self) -> None:
        """Let the idle threads end."""
        for thread in self._idle:
            thread.leave()
        self._idle.clear()


class _Thread:
    """One thread and its inbox."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._strays: Strays | None = None
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._main, name="headrace-thread", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return future

    def leave(self) -> None:
        self._calls.put(None)

    def leave_behind(self, strays: Strays, task: str) -> None:
        """Let it end when its function returns, as one of the strays until then."""
        self._strays = strays
        strays.add(self, task)
        self.leave()

    def _main(self) -> None:
        self._serve()
        if self._strays is not None:
            self._strays.remove(self, self._loop)

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            try:
                value, error = call(), None
            except BaseException as problem:
                value, error = None, problem
            try:
                future.get_loop().call_soon_threadsafe(_answer, future, value, error)
            except RuntimeError:  # the loop is gone: nobody waits any more
                break
            del item, call, future, value, error
        part()


def _answer(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(carried(error))


_KILL_WAIT = 1_000
"""Milliseconds to wait for the end of a killed process."""


class ProcessExecutor:
    """Processes that are reused while they return. One whose job was given up on is killed; one that dies fails its own
    job and no other. They are programs of ours, not copies of the parent: they run nothing of the script that the user
    has started, and share no threads or locks with it. None outlives the parent."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._killed: list[_Child] = []

    async def run(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function at ``module:qualname`` in a process."""
        try:
            call = bytes(ForkingPickler.dumps((args, kwargs)))
        except Exception as error:
            raise TypeError(f"the arguments of {function} cannot be sent to another process: {error}") from error
        child = self._take()
        try:
            answer = await child.run(bytes(ForkingPickler.dumps((function, call))))
        except BaseException as error:
            self._kill(child)
            if isinstance(error, EOFError | OSError):
                raise RuntimeError(f"the process that ran {function} died: {await child.ended()}") from None
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
        while self._idle:
            self._kill(self._idle.pop())
        while self._killed:
            await self._killed[-1].ended()
            self._killed.pop()

    def _take(self) -> _Child:
        """An idle child, or a new one."""
        self._killed = [child for child in self._killed if child.alive]
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            child.kill()
        return _Child()

    def _kill(self, child: _Child) -> None:
        child.kill()
        self._killed.append(child)


class _Child:
    """A process that runs ``headrace.worker.child``, and the line to it. Its death is noticed on the loop that it was
    made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        self._pidfd: int | None = None
        try:
            self._process = _start(theirs)
        except BaseException:
            self._line.close()
            raise
        finally:
            theirs.close()
        self._pidfd = pidfd(self._process.pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._died)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def run(self, request: bytes) -> bytes | Raised:
        """The answer. Raises EOFError or OSError if the child dies over it."""
        await self._loop.sock_sendall(self._line, SIZE.pack(len(request)) + request)
        (size,) = SIZE.unpack(await self._read(SIZE.size))
        return ForkingPickler.loads(await self._read(size))  # type: ignore[no-any-return]

    async def _read(self, size: int) -> bytearray:
        body = bytearray(size)
        rest = memoryview(body)
        while rest:
            if not (count := await self._loop.sock_recv_into(self._line, rest)):
                raise EOFError
            rest = rest[count:]
        return body

    def _died(self) -> None:
        """The child has died: end the wait for its answer. The socket does not always close by itself, as a process
        that the child has forked may hold it open."""
        self._unwatch()
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        self._unwatch()
        self._line.close()
        self._process.kill()

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    async def ended(self) -> str:
        """How it ended, after it was killed. A process that hangs in the kernel may not end in time."""
        for _ in range(_KILL_WAIT):
            if (code := self._process.poll()) is not None:
                return f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
            await asyncio.sleep(0.001)
        return "and it does not end"


def _start(line: socket.socket) -> subprocess.Popen[bytes]:
    if getattr(sys, "frozen", False):
        raise ConfigError("a frozen program cannot start processes that are not the program itself; use threads")
    # An interrupt is held back until the child can ignore it: a mask is inherited.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(_command(line.fileno()), stdin=subprocess.DEVNULL, pass_fds=[line.fileno()])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_PROGRAM = (
    "import sys; fd, count, *rest = sys.argv[1:]; sys.path[:] = rest[:int(count)]; sys.argv[:] = rest[int(count):]; "
    "from headrace.worker.child import main; main(int(fd))"
)
"""Not ``-m headrace.worker.child``: where this package is found may be known to the parent's ``sys.path`` only."""


def _command(fd: int) -> list[str]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    return [get_executable(), *flags, "-c", _PROGRAM, str(fd), str(len(path)), *path, *sys.argv]


def function_path(function: Callable[..., Any]) -> str:
    """Where a child process finds the function; raises if it could not."""
    if not inspect.isfunction(function) and not inspect.isbuiltin(function):
        raise ConfigError(
            f"{shown(function)} cannot be imported by another process; define a function at the top of a module"
        )
    path = f"{function.__module__}:{function.__qualname__}"
    if function.__module__ in ("__main__", "__mp_main__"):
        raise ConfigError(
            f"{path}: a function of the script that is started directly cannot be imported by another process; "
            "move it to a module"
        )
    if "<" in path:
        raise ConfigError(f"{path} cannot be imported by another process; define it at the top of a module")
    return path
