"""Logs what a worker gets done, every ten seconds: a line per job would cost more than the job."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.cli.times import length
from headrace.core.events import Event, EventKind
from headrace.seam.records import JobId

_EVERY = 10.0
"""Seconds between two lines."""
_ENDS = {
    EventKind.COMPLETED: "completed",
    EventKind.FAILED: "failed",
    EventKind.RETRYING: "retried",
    EventKind.SNOOZED: "snoozed",
    EventKind.CANCELLED: "cancelled",
    EventKind.RELEASED: "released",
    EventKind.LEASE_LOST: "lost",
}

log = logging.getLogger("headrace.worker")


class Summary:
    """Counts the events of one worker, and logs the counts."""

    def __init__(self, every: float = _EVERY) -> None:
        self._every = every
        self._counts: Counter[str] = Counter()
        self._running: set[JobId] = set()
        self._worker = ""

    def observe(self, event: Event) -> None:
        """An observer."""
        if event.kind is EventKind.STARTED:
            self._counts["started"] += 1
            self._running.add(event.id)
        elif event.kind in _ENDS:
            self._counts[_ENDS[event.kind]] += 1
            self._running.discard(event.id)
        elif event.kind is EventKind.WORKER_STARTED:
            self._worker = event.worker

    @asynccontextmanager
    async def logged(self) -> AsyncIterator[None]:
        """Log a line for each period in which something happened, and a total at the end of the block."""
        began = asyncio.get_running_loop().time()
        logging_task = asyncio.create_task(self._log_regularly(), name="headrace-summary")
        try:
            yield
        finally:
            logging_task.cancel()
            if self._worker:
                self._log("total", self._counts, asyncio.get_running_loop().time() - began)

    async def _log_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        before, then = Counter[str](), loop.time()
        while True:
            await asyncio.sleep(self._every)
            if self._counts != before:
                self._log("summary", self._counts - before, loop.time() - then)
            before, then = self._counts.copy(), loop.time()

    def _log(self, what: str, counts: Counter[str], seconds: float) -> None:
        numbers = {name: counts[name] for name in _ENDS.values()} | {"running": len(self._running)}
        words = ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number or name == "completed")
        when = ("in the last " if what == "summary" else "in total, over ") + length(round(seconds * 1e6))
        fields = {"event": what, "worker": self._worker, "seconds": round(seconds, 3), **numbers}
        log.info("%s %s: %s", self._worker, when, words, extra=fields)
