"""Threads that go on although their jobs were given up on: a thread cannot be ended from outside."""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

_MOMENT = 1.0
"""Seconds in which a handler that looks at its cancel token should have returned."""


class Watcher(Protocol):
    """The worker that the strays belong to. It is called on the event loop."""

    def came(self) -> None:
        """A thread has been left behind."""

    def stays(self, task: str) -> None:
        """One with a job of this task has not returned after a moment."""

    def went(self) -> None:
        """One has returned."""


class Strays:
    """Counts them. They come on the event loop and go from threads of their own."""

    def __init__(self) -> None:
        self._tasks: dict[object, str] = {}
        self._lock = threading.Lock()
        self.watcher: Watcher | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, thread: object, task: str) -> None:
        """The job of this thread has been given up on."""
        with self._lock:
            self._tasks[thread] = task
        asyncio.get_running_loop().call_later(_MOMENT, self._look, thread)
        if self.watcher is not None:
            self.watcher.came()

    def remove(self, thread: object, loop: asyncio.AbstractEventLoop) -> None:
        """The thread has returned. Called from the thread itself."""
        with self._lock:
            self._tasks.pop(thread, None)
        try:
            loop.call_soon_threadsafe(self._tell_gone)
        except RuntimeError:  # the loop has ended already
            return

    def _look(self, thread: object) -> None:
        if (task := self._tasks.get(thread)) is not None and self.watcher is not None:
            self.watcher.stays(task)

    def _tell_gone(self) -> None:
        if self.watcher is not None:
            self.watcher.went()
