"""Run plain functions: each job in a thread or a process."""

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

from headrace.core.config import WorkerSettings
from headrace.core.progress import unpack_progress
from headrace.errors import ConfigError
from headrace.text import shown
from headrace.worker.child import HEAD, SAID, SIZE, pidfd
from headrace.worker.child_errors import ChildTraceback, Raised, for_future
from headrace.worker.current import current_job, progress
from headrace.worker.django import close_connections, with_fresh_connections
from headrace.worker.strays import Strays


class ThreadExecutor:
    """Reuses its threads. A thread whose job was given up on is left behind; it ends when its function returns."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self.strays = Strays()

    async def run(self, call: Callable[[], Any], task: str = "") -> Any:
        """Run ``call``, a job of ``task``, in a thread, with the context variables of the caller."""
        thread = self._idle.pop() if self._idle else _Thread()
        try:
            value = await thread.run(partial(copy_context().run, with_fresh_connections, call))
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
        """Let it end when its function returns. Until then it is a stray."""
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
        close_connections()


def _answer(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(for_future(error))


_KILL_WAIT = 1_000
"""Milliseconds to wait for the end of a killed process."""


_LEAVE_WAIT = 10.0
"""Seconds that a child has to end by itself."""


class ProcessExecutor:
    """Reuses its processes. One whose job was given up on is killed. One that dies fails its own job and no other. They
    run a program of ours and are no copies of the parent: they do not run the user's script, and share no threads or
    locks with it. None outlives the parent."""

    def __init__(self, settings: WorkerSettings | None = None, *, polite: bool = False) -> None:
        """``polite``: let children end by themselves, as they have something to do at their end."""
        self._idle: list[_Child] = []
        self._killed: list[_Child] = []
        self._leaving: list[_Child] = []
        self._most_jobs = None if settings is None else settings.max_jobs_per_child
        self._most_memory = None if settings is None else settings.max_memory_per_child
        self._polite = polite

    async def run(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function at ``module:qualname`` in a process."""
        try:
            call = bytes(ForkingPickler.dumps((args, kwargs)))
        except Exception as error:
            raise TypeError(f"the arguments of {function} cannot be sent to another process: {error}") from error
        child = self._take()
        try:
            answer = await child.run(bytes(ForkingPickler.dumps((function, call, current_job()))))
        except BaseException as error:
            self._kill(child)
            if isinstance(error, EOFError | OSError):
                raise RuntimeError(f"the process that ran {function} died: {await child.ended()}") from None
            raise
        if self._is_spent(child):
            self._part(child)
        else:
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
            self._part(self._idle.pop())
        for child in self._leaving:
            await child.left()
            self._kill(child)
        self._leaving.clear()
        while self._killed:
            await self._killed[-1].ended()
            self._killed.pop()

    def _take(self) -> _Child:
        """An idle child, or a new one."""
        self._killed = [child for child in self._killed if child.alive]
        for child in [child for child in self._leaving if not child.alive]:
            self._leaving.remove(child)
            child.kill()
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            child.kill()
        return _Child()

    def _is_spent(self, child: _Child) -> bool:
        """Whether it has run its share of jobs, or has grown too large."""
        if self._most_jobs is not None and child.jobs >= self._most_jobs:
            return True
        return self._most_memory is not None and child.memory > self._most_memory

    def _part(self, child: _Child) -> None:
        if self._polite:
            child.ask_to_leave()
            self._leaving.append(child)
        else:
            self._kill(child)

    def _kill(self, child: _Child) -> None:
        child.kill()
        self._killed.append(child)


class _Child:
    """A process that runs ``headrace.worker.child``, and the socket to it. The loop that it was made on notices its
    end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection, theirs = socket.socketpair()
        self._connection.setblocking(False)
        self._pidfd: int | None = None
        self.jobs = 0
        """How many it has run."""
        self.memory = 0
        """Its bytes in memory after the last of them."""
        try:
            self._process = _start(theirs)
        except BaseException:
            self._connection.close()
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
        """The answer. Raises EOFError or OSError if the child dies meanwhile."""
        await self._loop.sock_sendall(self._connection, SIZE.pack(len(request)) + request)
        while True:
            size, memory = HEAD.unpack(await self._read(HEAD.size))
            answer = await self._read(size)
            if memory != SAID:
                break
            _say(bytes(answer))
        self.memory = memory
        self.jobs += 1
        return ForkingPickler.loads(answer)  # type: ignore[no-any-return]

    async def _read(self, size: int) -> bytearray:
        body = bytearray(size)
        rest = memoryview(body)
        while rest:
            if not (count := await self._loop.sock_recv_into(self._connection, rest)):
                raise EOFError
            rest = rest[count:]
        return body

    def _died(self) -> None:
        """The child has died: end the wait for its answer. A process that the child has forked may keep the socket
        open."""
        self._unwatch()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def ask_to_leave(self) -> None:
        """Let it end by itself; it is idle, so that the message finds room."""
        with suppress(OSError):
            self._connection.send(SIZE.pack(0))

    async def left(self) -> None:
        """Return when it has ended, or has had time enough."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_WAIT):
                while self.alive:
                    await asyncio.sleep(0.005)

    def kill(self) -> None:
        self._unwatch()
        self._connection.close()
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


def _start(connection: socket.socket) -> subprocess.Popen[bytes]:
    if getattr(sys, "frozen", False):
        raise ConfigError("a frozen program cannot start other programs, as processes need it; use threads")
    # An interrupt is blocked until the child can ignore it: the child inherits the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(_command(connection.fileno()), stdin=subprocess.DEVNULL, pass_fds=[connection.fileno()])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _say(said: bytes) -> None:
    """A child has said how far a job has come: the one that it runs now, or a thread that it should not have left."""
    job, told = current_job(), unpack_progress(said[16:])
    if job is not None and told is not None and job.id.bytes == said[:16]:
        progress(told.done, told.note)


_PROGRAM = (
    "import sys; fd, count, *rest = sys.argv[1:]; sys.path[:] = rest[:int(count)]; sys.argv[:] = rest[int(count):]; "
    "from headrace.worker.child import main; main(int(fd))"
)
"""Not ``-m headrace.worker.child``: perhaps only the parent's ``sys.path`` leads to this package."""


def _command(fd: int) -> list[str]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    return [get_executable(), *flags, "-c", _PROGRAM, str(fd), str(len(path)), *path, *sys.argv]


def function_path(function: Callable[..., Any]) -> str:
    """Where a child process finds the function. Raises ``ConfigError`` if it cannot."""
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
