"""The program of a child process: it runs functions for its parent, one at a time, and ends when the parent does."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from typing import Any

from headrace.core.progress import Progress, pack_progress
from headrace.seam.records import Leased
from headrace.worker.child_errors import Raised, raised
from headrace.worker.current import CurrentJob, running, saying
from headrace.worker.django import with_fresh_connections
from headrace.worker.job_fields import add_job_fields
from headrace.worker.startups import end_children

LOGS = "_HEADRACE_LOGS"
"""The environment variable that tells a child how to log: a function, as ``module:name``, and its arguments."""
SIZE = struct.Struct("!Q")
"""A request is its size, then its bytes; a size of 0 asks the child to end."""
HEAD = struct.Struct("!QQ")
"""Before the bytes of an answer: their number, and how many bytes the child has in memory."""
SAID = 2**64 - 1
"""Instead of that memory: the bytes are no answer yet, but the id of a job (16 bytes) and its progress."""
_SAYS_PER_SECOND = 10


def main(fd: int) -> None:
    """Answer the requests that the parent sends through the socket ``fd``, until that is closed."""
    # An interrupt from the terminal is left to the parent, which gives its jobs time to finish. It was blocked until
    # here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    saying.set(_Speaker(connection).say)
    threading.Thread(target=_end_with_parent, args=(connection,), name="headrace-parent", daemon=True).start()
    while request := _receive(connection):
        answer = ForkingPickler.dumps(_answer(request))
        _flush()
        with _SENDING:
            connection.sendall(HEAD.pack(len(answer), _memory()))
            connection.sendall(answer)
    end_children()
    _flush()


_SENDING = threading.Lock()
"""Threads of the job may say its progress while it ends."""


class _Speaker:
    """Tells the parent what jobs say of their progress, ten times a second at most."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._next = 0.0

    def say(self, job: Leased | CurrentJob, progress: Progress) -> None:
        now = time.monotonic()
        if now >= self._next and isinstance(job, CurrentJob):
            self._next = now + 1 / _SAYS_PER_SECOND
            said = job.id.bytes + pack_progress(progress)
            with _SENDING, suppress(OSError):
                self._connection.sendall(HEAD.pack(len(said), SAID) + said)


def pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has no such thing."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _end_with_parent(connection: socket.socket) -> None:
    """End when the parent closes the socket or ends, whatever the main thread does. To watch the socket is not enough:
    a process that the parent has forked may keep it open."""
    poller = select.poll()
    poller.register(connection, 0)  # only its end: what can be read is for the main thread
    if (parent := pidfd(os.getppid())) is not None:
        poller.register(parent, select.POLLIN)
    poller.poll()
    os._exit(1)


def _receive(connection: socket.socket) -> bytearray | None:
    """The next message; None if the socket was closed."""
    size = _read(connection, SIZE.size)
    return None if size is None else _read(connection, *SIZE.unpack(size))


def _read(connection: socket.socket, size: int) -> bytearray | None:
    body = bytearray(size)
    rest = memoryview(body)
    while rest:
        if not (count := connection.recv_into(rest)):
            return None
        rest = rest[count:]
    return body


def _answer(request: bytearray) -> bytes | Raised:
    """What the function returned, pickled, or what it raised. The parent can always read these two."""
    try:
        function, call, job = ForkingPickler.loads(request)
        try:
            args, kwargs = ForkingPickler.loads(call)
        except Exception as error:
            raise TypeError(f"the arguments of {function} cannot be read in another process: {error}") from error
        found = _found(function)
        run = partial(found.in_child, args, kwargs) if hasattr(found, "in_child") else partial(found, *args, **kwargs)
        _prepare_logs()
        running.set(() if job is None else (job,))
        value = with_fresh_connections(run)
        try:
            return bytes(ForkingPickler.dumps(value))
        except Exception as error:
            raise TypeError(f"what {function} returned cannot be sent to another process: {error}") from error
    except BaseException as error:
        return raised(error)


def _found(function: str) -> Any:
    """The object at ``module:qualname``: a task, or a function."""
    module, _, qualname = function.partition(":")
    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


@cache
def _prepare_logs() -> None:
    """Log as the parent does. The user's module, which may have set up its own way, is imported by now."""
    function, _, given = os.environ.get(LOGS, "").partition(" ")
    if function:
        _found(function)(*given.split())
    add_job_fields()


def _memory() -> int:
    """How many bytes of this process are in memory; the most there ever were, where the system tells no more."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1_024


def _flush() -> None:
    """Write out what was printed. A child usually ends by a kill, which would lose it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
