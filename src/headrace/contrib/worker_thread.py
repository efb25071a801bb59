"""A worker in a thread of a program that has no event loop, such as a small web service."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401  so that its own end is registered before ours, and comes after it
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.api.app import App

log = logging.getLogger("headrace")


_at_exit: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
"""Plain ``atexit`` is too late: the thread pools that a worker needs in order to stop are shut down before."""


class WorkerThread:
    """Runs the jobs of an app until the process ends. A forked process starts its own."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._pid = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it, unless it runs in this process. Callable from any thread, as often as you like."""
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid == os.getpid():
                return
            self._pid = os.getpid()
            work = self._app.work()  # from here on, a stop counts
            self._thread = threading.Thread(target=self._work, args=[work], name="headrace-worker", daemon=True)
            self._thread.start()
            _at_exit(self.stop)

    def stop(self) -> None:
        """Let running jobs finish within ``worker.grace``, then return."""
        thread = self._thread
        if thread is None or self._pid != os.getpid():
            return
        self._app.stop()
        thread.join()
        self._thread, self._pid = None, 0

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.run(self._run(work))
        except Exception:
            log.exception("the worker in this process has ended; jobs wait for another one")
        finally:
            work.close()

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._app:
            await work
