"""A process beside a worker for jobs on their last chance: started when there is one, gone soon after the last."""

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
_LAST_WORDS = 5.0
"""Seconds between the latest end of a graceful stop and the kill."""
_LEASES = 4
"""Leases for which one that was of no use is not called again."""
_MET, _STOP = b".", b"!"
_SUFFIX = "-helper"
_LONGEST_NAME = 1_000


class HelperProcess:
    """Runs ``headrace worker --helper`` when its worker calls, one at a time.

    The helper's stdin is a line to here. By it the helper is asked to stop, and tells of each job on its last chance
    before it starts that; it stops, too, if this process is gone. One that ends without having met any such job was of
    no use, whatever the reason: for some leases, in which the worker has its turn to be chosen, none is called again.
    After a crash there is a pause, longer each time.
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

    def call(self) -> None:
        if not self._stopping and self._running is None and asyncio.get_running_loop().time() >= self._not_before:
            self._running = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Ask for a graceful stop, and start none again. Not by a signal: a manager of services may signal every
        process itself, and a second one ends at once."""
        if not self._stopping:
            self._stopping = True
            if self._line is not None:
                with suppress(OSError):
                    self._line.send(_STOP)

    async def close(self) -> None:
        """Return when no helper is left: one that was asked to stop has the worker's own grace."""
        self.stop()
        if self._running is None:
            return
        await asyncio.wait([self._running], timeout=self._grace + self._lease + _LAST_WORDS)
        if self._child is not None:
            with suppress(ProcessLookupError):
                self._child.kill()
        if self._running is not None:
            await self._running

    async def _run(self) -> None:
        code, met = None, False
        try:
            ours, theirs = socket.socketpair()
            with ours:
                ours.setblocking(False)
                self._line = ours
                code = await self._run_child(theirs)
                met = _said(ours)
        except OSError as error:
            log.error("a helper for jobs on their last chance could not be started: %s", error)
        finally:
            self._running = self._line = None
        if not self._stopping:
            self._judge(code, met=met)

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
        log.info("process %d takes jobs on their last chance", child.pid, extra={"pid": child.pid})
        try:
            return await child.wait()
        finally:
            self._child = None

    def _judge(self, code: int | None, *, met: bool) -> None:
        now = asyncio.get_running_loop().time()
        if not met:
            self._useless_until = now + _LEASES * self._lease
        if code == OK:
            self._pause = _FIRST_PAUSE
            return
        if code is not None:
            what = "the helper for jobs on their last chance"
            log.error("%s %s; no other is started for %g s", what, ending(code), self._pause)
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def helper_name(worker: str) -> str:
    """What the helper of a worker is called."""
    return worker.encode()[:_LONGEST_NAME].decode(errors="ignore") + _SUFFIX


def tell_met() -> None:
    """From the helper: a job on its last chance is about to be started."""
    with suppress(OSError):  # the worker is gone, and this process about to stop
        os.write(0, _MET)


def _said(line: socket.socket) -> bool:
    """Whether the helper has told of a job."""
    try:
        return bool(line.recv(1))
    except OSError:
        return False
