"""Threads that go on although their jobs were given up on: a thread cannot be ended from outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

_MOMENT = 1.0
"""Seconds in which a handler that looks at its cancel token should have returned."""


class Strays:
    """How many there are, and who wants to know. They come on the event loop and go from threads of their own."""

    def __init__(self) -> None:
        self._tasks: dict[object, str] = {}
        self._lock = threading.Lock()
        self.came: Callable[[], None] = _nobody
        """Called on the loop when one has been left behind."""
        self.stays: Callable[[str], None] = _tell_nobody
        """Called on the loop with the task of one that has not returned after a moment."""
        self.gone: Callable[[], None] = _nobody
        """Called on the loop when one has returned."""

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, thread: object, task: str) -> None:
        """The job of this thread has been given up on."""
        with self._lock:
            self._tasks[thread] = task
        asyncio.get_running_loop().call_later(_MOMENT, self._look, thread)
        self.came()

    def remove(self, thread: object, loop: asyncio.AbstractEventLoop) -> None:
        """The thread has returned; from the thread itself."""
        with self._lock:
            self._tasks.pop(thread, None)
        try:
            loop.call_soon_threadsafe(self._tell_gone)
        except RuntimeError:  # the loop has ended already
            return

    def _look(self, thread: object) -> None:
        if (task := self._tasks.get(thread)) is not None:
            self.stays(task)

    def _tell_gone(self) -> None:
        self.gone()


def _nobody() -> None: ...


def _tell_nobody(task: str) -> None: ...
