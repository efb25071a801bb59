"""Logs what a worker gets done, every ten seconds: a line per job would cost more than the job."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.cli.times import length
from headrace.core.events import Event, EventKind
from headrace.core.meter import Meter

_EVERY = 10.0
"""Seconds between two lines."""
_ENDS = {
    EventKind.FAILED: "failed",
    EventKind.RETRYING: "retried",
    EventKind.SNOOZED: "snoozed",
    EventKind.PAUSED: "paused",
    EventKind.CANCELLED: "cancelled",
    EventKind.RELEASED: "released",
    EventKind.LEASE_LOST: "lost",
}

log = logging.getLogger("headrace.worker")


class Summary:
    """Counts what becomes of a worker's jobs, and logs the counts. A meter counts those that complete: an event for
    each would cost a quick job a third of its time."""

    def __init__(self, meter: Meter, running: Callable[[], int], every: float = _EVERY) -> None:
        self._meter = meter
        self._running = running
        self._every = every
        self._events: Counter[str] = Counter()
        self._worker = ""
        self._before = self._completed()

    def observe(self, event: Event) -> None:
        """An observer of what is not routine."""
        if event.kind in _ENDS:
            self._events[_ENDS[event.kind]] += 1
        elif event.kind is EventKind.WORKER_STARTED:
            self._worker = event.worker

    def _counts(self) -> Counter[str]:
        return self._events + Counter(completed=self._completed() - self._before)

    def _completed(self) -> int:
        return sum(series.completed for series in self._meter.series())

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
                self._log("total", self._counts(), asyncio.get_running_loop().time() - began)

    async def _log_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        before, then = Counter[str](), loop.time()
        while True:
            await asyncio.sleep(self._every)
            counts = self._counts()
            if counts != before:
                self._log("summary", counts - before, loop.time() - then)
            before, then = counts, loop.time()

    def _log(self, what: str, counts: Counter[str], seconds: float) -> None:
        numbers = {name: counts[name] for name in ("completed", *_ENDS.values())} | {"running": self._running()}
        words = ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number or name == "completed")
        when = ("in the last " if what == "summary" else "in total, over ") + length(round(seconds * 1e6))
        fields = {"event": what, "worker": self._worker, "seconds": round(seconds, 3), **numbers}
        log.info("%s %s: %s", self._worker, when, words, extra=fields)
