"""Keeps worker processes running: restarts them when they crash, reloads them when the code changes."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path

from headrace.api.signals import SIGNALS
from headrace.cli.loading import hide_own_variables
from headrace.cli.problems import OK, USAGE

log = logging.getLogger("headrace.supervisor")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_HEALTHY = 30.0
"""A child that lived for this many seconds did not crash at the start: the pauses start over."""
_KILL_AFTER = 3.0
"""Seconds between a forced end and the kill."""


class Supervisor:
    """Runs ``headrace worker`` as child processes, one for each list of arguments.

    Each child has its own process group, so that a Ctrl-C in the terminal reaches it once, through this process. Its
    stdin is a pipe from here, so that it stops if this process is killed.
    """

    def __init__(self, children: Sequence[Sequence[str]], watch: Sequence[Path] = ()) -> None:
        self._arguments = children
        self._watched = watch
        self._running: dict[int, Process] = {}
        self._asked: set[int] = set()
        """Places whose child has been asked to stop."""
        self._version = 0
        """How often the code has changed."""
        self._news = asyncio.Event()
        """Set at the next change, or on a signal to stop."""
        self._stopping = 0
        """The signal to stop, once it came."""
        self._forced = False
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Run until all children have ended; returns the exit code."""
        hide_own_variables()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._received, number)
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch()) if self._watched else None
                keeping = [group.create_task(self._keep(place)) for place in range(len(self._arguments))]
                await asyncio.wait(keeping)
                if watching is not None:
                    watching.cancel()
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        if self._forced:
            return 128 + self._stopping
        return next((code for task in keeping if (code := task.result())), OK)

    # -- one child

    async def _keep(self, place: int) -> int:
        """Keep the child at this place running; returns the exit code of the last one."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        proven = False
        while not self._stop.is_set():
            began, version = loop.time(), self._version
            code = await self._run_child(place)
            if self._stop.is_set():
                return OK if code in (-signal.SIGTERM, -signal.SIGINT) else code
            if self._watched:
                await self._until_changed(version, code)
                continue
            healthy = loop.time() - began > _HEALTHY
            proven = proven or healthy
            if code == OK or (code == USAGE and not proven):  # a usage error at the first start would only repeat
                return code
            pause = _FIRST_PAUSE if healthy else pause
            log.error("worker %d %s; restarting in %g s", place + 1, ending(code), pause)
            await self._pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return OK

    async def _run_child(self, place: int) -> int:
        command = [sys.executable, "-m", "headrace.cli", "worker", *self._arguments[place], "--tethered"]
        child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, process_group=0)
        self._running[place] = child
        self._asked.discard(place)
        if self._stopping:
            _signal(child, signal.SIGTERM)
        log.debug("worker %d is process %d", place + 1, child.pid, extra={"pid": child.pid})
        try:
            return await child.wait()
        finally:
            del self._running[place]

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    # -- signals

    def _received(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._stopping:
            self._force(name)
            return
        self._stopping = number
        log.info("stopping %d worker(s) on %s", len(self._running), name)
        self._stop.set()
        self._news.set()
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        """Ask every child once: a second signal would force it."""
        for place in self._running.keys() - self._asked:
            _signal(self._running[place], signal.SIGTERM)
        self._asked = set(self._running)

    def _force(self, name: str) -> None:
        self._forced = True
        log.warning("%s again: ending at once", name)
        for child in self._running.values():
            _signal(child, signal.SIGTERM)
        asyncio.get_running_loop().call_later(_KILL_AFTER, self._kill)

    def _kill(self) -> None:
        for child in self._running.values():
            _signal(child, signal.SIGKILL)

    # -- reload

    async def _watch(self) -> None:
        from watchfiles import PythonFilter, awatch

        log.info("watching .py files below %s", ", ".join(map(str, self._watched)))
        async for changes in awatch(*self._watched, watch_filter=PythonFilter(), step=50, stop_event=self._stop):
            names = sorted({_short(path) for _, path in changes})
            log.info("changed: %s; reloading", ", ".join(names))
            self._version += 1
            self._news.set()
            self._news = asyncio.Event()
            self._ask_to_stop()

    async def _until_changed(self, version: int, code: int) -> None:
        """Return when the code has changed since the child started."""
        if self._version == version:
            log.log(logging.INFO if code == OK else logging.ERROR, "the worker %s; waiting for a change", ending(code))
            await self._news.wait()


def _signal(child: Process, number: int) -> None:
    try:
        child.send_signal(number)
    except ProcessLookupError:
        return


def ending(code: int) -> str:
    """How a process has ended, by its exit code."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _short(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
