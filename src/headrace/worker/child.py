"""The program of a child process: it runs functions for its parent, one after another, and ends when that does."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from typing import Any

from headrace.worker.django import tended
from headrace.worker.raised import Raised, raised

SIZE = struct.Struct("!Q")
"""A message is its size, then its bytes."""


def main(fd: int) -> None:
    """Answer the requests that the parent sends through the socket ``fd``, until it hangs up."""
    # An interrupt from the terminal is left to the parent, which knows about grace and has held it back until here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    line = socket.socket(fileno=fd)
    line.set_inheritable(False)
    threading.Thread(target=_end_with_parent, args=(line,), name="headrace-parent", daemon=True).start()
    while (request := _receive(line)) is not None:
        answer = ForkingPickler.dumps(_answer(request))
        _flush()
        line.sendall(SIZE.pack(len(answer)))
        line.sendall(answer)


def pidfd(pid: int) -> int | None:
    """A descriptor that can be read once the process has ended; None where the system has no such thing."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _end_with_parent(line: socket.socket) -> None:
    """End when the parent hangs up or is gone, whatever the main thread does. The line alone would not do: a process
    that the parent has forked keeps it open beyond the parent's death."""
    poller = select.poll()
    poller.register(line, 0)  # nothing but a hang-up: what can be read is for the main thread
    if (parent := pidfd(os.getppid())) is not None:
        poller.register(parent, select.POLLIN)
    poller.poll()
    os._exit(1)


def _receive(line: socket.socket) -> bytearray | None:
    """The next message; None when there will be none."""
    size = _read(line, SIZE.size)
    return None if size is None else _read(line, *SIZE.unpack(size))


def _read(line: socket.socket, size: int) -> bytearray | None:
    body = bytearray(size)
    rest = memoryview(body)
    while rest:
        if not (count := line.recv_into(rest)):
            return None
        rest = rest[count:]
    return body


def _answer(request: bytearray) -> bytes | Raised:
    """What came of the call. Only bytes and plain data leave the child: those the parent can read in any case."""
    try:
        function, call = ForkingPickler.loads(request)
        try:
            args, kwargs = ForkingPickler.loads(call)
        except Exception as error:
            raise TypeError(f"the arguments of {function} cannot be read in another process: {error}") from error
        value = tended(partial(_found(function), *args, **kwargs))
        try:
            return bytes(ForkingPickler.dumps(value))
        except Exception as error:
            raise TypeError(f"what {function} returned cannot be sent to another process: {error}") from error
    except BaseException as error:
        return raised(error)


def _found(function: str) -> Any:
    """What is at ``module:qualname``; of a task, its function."""
    module, _, qualname = function.partition(":")
    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return getattr(found, "function", found)


def _flush() -> None:
    """Let out what was printed: nothing else does when the child is killed, which is how it usually ends."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
