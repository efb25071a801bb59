"""What keeps windows fed. Every worker does it; there is no leader, only one feeder of a window at a time."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from headrace.backends.streams.options import StreamsOptions
from headrace.backends.streams.refill import Refill, is_odd
from headrace.backends.streams.truth import Truth
from headrace.backends.streams.windows import CLOSED, CLOSING, OPEN, Windows
from headrace.errors import BackendError
from headrace.seam.records import Stamp

log = logging.getLogger("headrace")

_HOLD = 5_000_000
"""Microseconds for which a queue stays with PostgreSQL at least, so that odd jobs do not open and close its window by
turns."""
_IDLE = 60_000
"""Milliseconds after which a consumer that owns nothing is removed."""


class Relay:
    """Looks into PostgreSQL for a window."""

    def __init__(self, truth: Truth, windows: Windows, options: StreamsOptions) -> None:
        self._truth = truth
        self._windows = windows
        self._options = options
        self._tokens = Random()
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._refilling: dict[asyncio.Task[None], Refill] = {}

    def look_soon(self, queue: str, at: Stamp) -> None:
        """Look while others go on."""
        if queue not in self._looking:
            task = asyncio.get_running_loop().create_task(self._look_quietly(queue, at), name="headrace-relay")
            self._looking[queue] = task
            task.add_done_callback(lambda _: self._looking.pop(queue, None))

    async def _look_quietly(self, queue: str, at: Stamp) -> None:
        try:
            await self.look(queue, at)
        except BackendError as error:
            log.debug("the window of %r was not fed: %s", queue, error)

    async def stop(self) -> None:
        """Wait for what is under way. A refill ends with its next page."""
        while under_way := [*self._looking.values(), *self._refilling]:
            for refill in self._refilling.values():
                refill.stop()
            await asyncio.wait(under_way)

    async def look(self, queue: str, at: Stamp, wanted: int = 0) -> bool:
        """Feed the window of a queue, open or close it, as PostgreSQL says. The caller will take this many jobs. False:
        another process does this."""
        token = f"{self._tokens.getrandbits(64):x}"
        feeding = await self._windows.begin(queue, token, at)
        if not feeding.may or (feeding.mode in (CLOSING, CLOSED) and feeding.left > 0):
            return False
        if feeding.mode == CLOSING:
            await self.close(queue, at)
            return True
        refill = Refill(self._truth, self._windows, self._options, queue, token, feeding, at)
        found = await refill.read(feeding.mark)
        if found is not None and not is_odd(found) and feeding.mode != OPEN:
            if not await self._truth.open_queue(feeding.floor, queue, at):
                await self.close(queue, at)
                return True
            found = await refill.read(b"")
        if found is None:
            await self._windows.begin_again(at)
            return False
        if is_odd(found):
            await self.close(queue, at)
            return True
        if feeding.mark == b"" and feeding.mode == OPEN:
            await self._windows.prune(queue, idle=_IDLE)
        mark = await refill.first(found, wanted)
        if mark is not None and not refill.is_over:
            task = asyncio.get_running_loop().create_task(self._go_on(refill, mark, at), name="headrace-refill")
            self._refilling[task] = refill
            task.add_done_callback(self._refilling.pop)
        return mark is not None

    async def _go_on(self, refill: Refill, mark: bytes | None, at: Stamp) -> None:
        """Feed the other pages, while claims take what is there."""
        try:
            while mark is not None and not refill.is_over:
                found = await refill.read(mark)
                if found is None or is_odd(found):
                    return await self.close(refill.queue, at)
                mark = await refill.next(found, mark)
        except BackendError as error:
            log.debug("the window of %r was not filled: %s", refill.queue, error)

    async def queues(self, at: Stamp) -> list[str]:
        """Those that have a window, or had one."""
        return await self._windows.queues(at)

    async def close(self, queue: str, at: Stamp) -> None:
        """PostgreSQL gives the jobs of this queue out from now on."""
        floor, found = await self._windows.close(queue, at)
        while not await self._truth.shut_queue(floor, queue, found, at):
            await self._windows.begin_again(at)
            floor, found = await self._windows.close(queue, at)
        await self._windows.shut(queue, _HOLD)
