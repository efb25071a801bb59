"""An event loop in the background of a process, for threads that have none: one, started when it is first needed."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from headrace.errors import ConfigError, Unavailable
from headrace.seam.forks import in_child, look

R = TypeVar("R")

_GLANCE = 0.5
"""How often, in seconds, a waiting thread looks whether the loop that works for it still runs."""
_START = 30.0
"""How long, in seconds, its thread may take to start."""
_AT_EXIT = 5.0
"""How long, in seconds, the end of the process waits for connections to be closed."""


_BEFORE_FORK = 5.0
"""How long, in seconds, a fork waits for brief calls to end."""


class Closable(Protocol):
    """What is open on the loop."""

    def close(self) -> Awaitable[None]: ...


class Background:
    """The loop, its thread, and what is open there, each with those that need it to stay open."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls = {True: 0, False: 0}
        """How many calls are under way: brief ones, and others."""
        self._needed: dict[Closable, set[object]] = {}
        self._thread = threading.Thread(target=self.loop.run_forever, name="headrace-sync", daemon=True)
        running = threading.Event()
        self.loop.call_soon(running.set)
        self._thread.start()
        if not running.wait(_START):
            raise ConfigError(
                "a thread in the background was started, but does not run: this process has no threads to give; for "
                "uWSGI, set enable-threads = true"
            )

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def need(self, what: Closable, who: object) -> None:
        """Keep ``what`` open until ``who`` lets go of it."""
        self._needed.setdefault(what, set()).add(who)

    def let_go(self, who: object) -> bool:
        """Close what nobody else needs. Returns whether nothing is left."""
        for what, users in list(self._needed.items()):
            users.discard(who)
            if not users:
                del self._needed[what]
                wait_on(self.loop, partial(_close, what))
        return not self._needed

    def drop(self, what: Closable) -> bool:
        """Close this, whoever needs it. Returns whether nothing is left."""
        if self._needed.pop(what, None) is not None:
            wait_on(self.loop, partial(_close, what))
        return not self._needed

    def disconnect(self) -> None:
        """Close everything; what is used again opens itself."""
        for what in self._needed:
            wait_on(self.loop, partial(_close, what, _BEFORE_FORK))

    def end(self, seconds: float | None = None) -> None:
        """Close everything, wake the threads that wait, and end. With ``seconds``, closing may take as long as that."""
        try:
            wait_on(self.loop, lambda: self._leave(seconds))
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    async def _leave(self, seconds: float | None) -> None:
        for what in self._needed:
            await _close(what, seconds)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()


async def _close(what: Closable, seconds: float | None = None) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await what.close()


_lock = threading.Condition()
"""Held while the background changes; notified when no brief call is under way any more."""
_background: Background | None = None
_forks = 0
"""How many forks are about to happen. No call begins meanwhile: else threads that call all the time leave no moment in
which none is under way."""
_inherited: list[Background] = []
"""Those of the parents of a forked process. If they were collected, their loops would be closed, which unregisters
them from selectors that the parent still waits on."""


def run_behind(what: Closable, who: object, begin: Callable[[], Coroutine[Any, Any, R]], *, brief: bool) -> R:
    """Run a coroutine on the loop in the background, and wait for it. ``what`` stays open there until ``who`` lets go
    of it. A fork waits for what is ``brief``."""
    global _background
    look()
    with _lock:
        _lock.wait_for(lambda: not _forks)
        if _background is None or not _background.running:
            _background = Background()
        found = _background
        found.need(what, who)
        found.calls[brief] += 1
    try:
        return wait_on(found.loop, begin)
    finally:
        with _lock:
            found.calls[brief] -= 1
            if not found.calls[True]:
                _lock.notify_all()


def runs_here() -> bool:
    """Whether the caller is on the loop in the background."""
    return _background is not None and _get_running_loop() is _background.loop


def let_go(who: object) -> None:
    """Close what nobody else needs in the background; end the loop when nothing is left there."""
    if runs_here():
        raise ConfigError("close() would wait for the loop that it was called on; call it from another thread")
    _leave(lambda background: background.let_go(who))


def drop(what: Closable) -> None:
    """Close it in the background, whoever needs it: it is never used again."""
    _leave(lambda background: background.drop(what))


def _leave(close: Callable[[Background], bool]) -> None:
    """Close something, and end the loop when nothing is left there."""
    global _background
    with _lock:
        found = _background
        if found is None or not found.running or not close(found):
            return
        _background = None
    found.end()


def end() -> None:
    """End the loop, whoever needs it. A call that comes later starts another one."""
    global _background
    found, _background = _background, None
    if found is not None and found.running:
        with suppress(Exception):
            found.end(_AT_EXIT)


def _before_fork() -> None:
    """Close what is open in the background, so that the child inherits no connection: SQLite's locks and most drivers
    do not survive a fork. If somebody waits for a result there, it stays open."""
    global _forks
    _lock.acquire()
    _forks += 1
    found = _background
    if found is None or not found.running or runs_here():
        return
    _lock.wait_for(lambda: not found.calls[True], _BEFORE_FORK)
    if not any(found.calls.values()):
        with suppress(Exception):
            found.disconnect()


def _forked() -> None:
    """A forked process has none of its parent's threads."""
    global _lock, _background, _forks
    _lock, _forks = threading.Condition(), 0
    if _background is not None:
        _inherited.append(_background)
        _background = None


def _release() -> None:
    global _forks
    _forks -= 1
    _lock.notify_all()
    _lock.release()


atexit.register(end)
os.register_at_fork(before=_before_fork, after_in_parent=_release)
in_child(_forked)


class _Errand(Generic[R]):
    """A coroutine that one thread has another one's loop run. Lighter than a future of ``concurrent.futures``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self._loop = loop
        self._begin = begin
        self.task: asyncio.Task[R] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()
        self._dropped = False

    def start(self) -> None:
        if not self._dropped:
            self.task = self._loop.create_task(_begun(self._begin))
            self.task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[R]) -> None:
        self.ended.release()

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self._dropped = True
        if self.task is not None:
            self.task.cancel()


async def _begun(begin: Callable[[], Coroutine[Any, Any, R]]) -> R:
    return await begin()


def wait_on(loop: asyncio.AbstractEventLoop, begin: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run a coroutine on the loop of another thread, and wait for it. Raises ``RuntimeError`` if the loop is closed,
    and ``Unavailable`` if it ends before the coroutine does."""
    errand = _Errand(loop, begin)
    loop.call_soon_threadsafe(errand.start)
    try:
        while not errand.ended.acquire(timeout=_GLANCE):
            if not loop.is_running():
                raise asyncio.CancelledError
        assert errand.task is not None
        return errand.task.result()
    except asyncio.CancelledError:
        raise Unavailable(
            "the event loop that had the app open has ended, or the SyncApp was closed; whether it was done is unknown"
        ) from None
    finally:
        if errand.task is None or not errand.task.done():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(errand.drop)
