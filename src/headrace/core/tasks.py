"""Background tasks, each with an owner that ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("headrace")


class Tasks:
    """A set of running tasks: none is garbage-collected early, none outlives ``close``, no error goes unseen."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run ``work`` in the background."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s ended with an error", task.get_name(), exc_info=error)

    async def close(self, patience: float | None = None) -> None:
        """Cancel what still runs and wait for it to end; after ``patience`` seconds, leave the rest behind."""
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            _, stubborn = await asyncio.wait(running, timeout=patience)
            for task in stubborn:
                log.warning("background task %s did not end when it was cancelled; it is left behind", task.get_name())
