"""A process beside a worker for jobs on their last chance: started for the first, ended after the last."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress

from headrace.cli.problems import OK
from headrace.cli.supervisor import ending

log = logging.getLogger("headrace.worker")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_KILL_AFTER = 5.0
"""Seconds between the end of a graceful stop and the kill."""
_LEASES = 4
"""Leases to wait after a helper that found no job."""
_FOUND, _STOP = b".", b"!"
_SUFFIX = "-helper"
_LONGEST_NAME = 1_000


class HelperProcess:
    """Runs ``headrace worker --helper`` when its worker asks for it, one at a time.

    The helper's stdin is a socket to this process. Over it the worker asks the helper to stop, and the helper reports
    each job on its last chance before it starts it. The helper also stops if this process dies. A helper that found no
    such job was of no use: none is started for a few leases, so that the worker itself can be chosen. After a crash
    there is a pause, longer each time.
    """

    def __init__(self, arguments: Sequence[str], *, lease: float, grace: float) -> None:
        self._arguments = arguments
        self._lease = lease
        self._grace = grace
        self._running: asyncio.Task[None] | None = None
        self._child: Process | None = None
        self._line: socket.socket | None = None
        self._stopping = False
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        self._useless_until = 0.0

    @property
    def useful(self) -> bool:
        return asyncio.get_running_loop().time() >= self._useless_until

    def start(self) -> None:
        if not self._stopping and self._running is None and asyncio.get_running_loop().time() >= self._not_before:
            self._running = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Ask for a graceful stop, and start no other. Not by a signal: a service manager may signal every process
        itself, and a second signal stops a helper at once."""
        if not self._stopping:
            self._stopping = True
            if self._line is not None:
                with suppress(OSError):
                    self._line.send(_STOP)

    async def close(self) -> None:
        """Return when the helper has ended; it has the same grace time as the worker."""
        self.stop()
        if self._running is None:
            return
        await asyncio.wait([self._running], timeout=self._grace + self._lease + _KILL_AFTER)
        if self._child is not None:
            with suppress(ProcessLookupError):
                self._child.kill()
        if self._running is not None:
            await self._running

    async def _run(self) -> None:
        code, found = None, False
        try:
            ours, theirs = socket.socketpair()
            with ours:
                ours.setblocking(False)
                self._line = ours
                code = await self._run_child(theirs)
                found = _reported(ours)
        except OSError as error:
            log.error("cannot start a helper for jobs on their last chance: %s", error)
        finally:
            self._running = self._line = None
        if not self._stopping:
            self._judge(code, found=found)

    async def _run_child(self, line: socket.socket) -> int:
        with line:
            if self._stopping:
                return OK
            # In a session of its own, so that a Ctrl-C in the terminal reaches it once, through here.
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headrace.cli",
                "worker",
                *self._arguments,
                "--helper",
                stdin=line.fileno(),
                start_new_session=True,
            )
        self._child = child
        log.info("process %d runs jobs on their last chance", child.pid, extra={"pid": child.pid})
        try:
            return await child.wait()
        finally:
            self._child = None

    def _judge(self, code: int | None, *, found: bool) -> None:
        now = asyncio.get_running_loop().time()
        if not found:
            self._useless_until = now + _LEASES * self._lease
        if code == OK:
            self._pause = _FIRST_PAUSE
            return
        if code is not None:
            what = "the helper for jobs on their last chance"
            log.error("%s %s; the next one starts in %g s at the earliest", what, ending(code), self._pause)
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def helper_name(worker: str) -> str:
    """The name of a worker's helper."""
    return worker.encode()[:_LONGEST_NAME].decode(errors="ignore") + _SUFFIX


class HelpedProcess:
    """The worker of this helper process, at the other end of its stdin."""

    def job_found(self) -> None:
        with suppress(OSError):  # the worker is gone, so this process stops soon
            os.write(0, _FOUND)


def _reported(line: socket.socket) -> bool:
    """Whether the helper has reported a job."""
    try:
        return bool(line.recv(1))
    except OSError:
        return False
