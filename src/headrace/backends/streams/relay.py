"""What keeps windows fed. Every worker does it; there is no leader, only one feeder of a window at a time."""

from __future__ import annotations

import asyncio
import logging
import struct
from random import Random

from headrace.backends.streams.entries import Entry, of_stored
from headrace.backends.streams.options import StreamsOptions
from headrace.backends.streams.truth import Candidate, Candidates, Truth
from headrace.backends.streams.windows import CLOSED, CLOSING, OPEN, Fed, Feeding, Windows
from headrace.errors import BackendError
from headrace.seam.records import Stamp

log = logging.getLogger("headrace")

_AT_ONCE = 2_000
_HOLD = 5_000_000
"""Microseconds for which a queue stays with PostgreSQL at least, so that odd jobs do not open and close its window by
turns."""
_IDLE = 60_000
"""Milliseconds after which a consumer that owns nothing is removed."""
_MARK = struct.Struct(">hq16s")


class Relay:
    """Looks into PostgreSQL for a window."""

    def __init__(self, truth: Truth, windows: Windows, options: StreamsOptions) -> None:
        self._truth = truth
        self._windows = windows
        self._options = options
        self._tokens = Random()
        self._looking: dict[str, asyncio.Task[None]] = {}

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
        """Wait for what is under way."""
        if self._looking:
            await asyncio.wait(list(self._looking.values()))

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
        start = None if not feeding.mark else Candidate(*_unpacked(feeding.mark))
        found = await self._read(feeding.floor, queue, start, at)
        if found is not None and not _is_odd(found) and feeding.mode != OPEN:
            if not await self._truth.open_queue(feeding.floor, queue, at):
                await self.close(queue, at)
                return True
            found = await self._read(feeding.floor, queue, None, at)
        if found is None:
            await self._windows.begin_again(at)
            return False
        if _is_odd(found):
            await self.close(queue, at)
            return True
        gathered = await self._gather(queue, feeding, found, at)
        if gathered is None:
            await self.close(queue, at)
            return True
        if feeding.mark == b"" and feeding.mode == OPEN:
            await self._windows.prune(queue, idle=_IDLE)
        return await self._windows.feed(queue, token, gathered, wanted, at)

    async def _read(self, floor: int, queue: str, mark: Candidate | None, at: Stamp) -> Candidates | None:
        return await self._truth.candidates(
            floor, queue, _AT_ONCE, mark, self._options.horizon, self._options.entry_bytes, at
        )

    async def _gather(self, queue: str, feeding: Feeding, found: Candidates, at: Stamp) -> Fed | None:
        """What the window lacks, as far as there is room. None: there are odd jobs among it."""
        room = self._options.window - feeding.waiting
        entries: list[Entry] = []
        mark = feeding.mark if feeding.mode == OPEN else b""
        later = [one for one in found.later if not one.odd]
        next_at = _next_at(found)
        wanted = (await self._windows.unknown(queue, [one.id for one in later]))[: max(0, room)]
        for _ in range(self._options.window // _AT_ONCE + 4):
            line = found.line
            unknown = await self._windows.unknown(queue, [one.id for one in line])
            taken = unknown[: max(0, room - len(wanted))]
            entries += [of_stored(row, feeding.loss) for row in await self._truth.feed(wanted + taken)]
            room -= len(wanted) + len(taken)
            wanted = []
            if len(taken) < len(unknown):
                first = next(number for number, one in enumerate(line) if one.id == unknown[len(taken)])
                return Fed(entries, _packed(line[first - 1]) if first else mark, True, next_at, found.now)
            if len(line) < _AT_ONCE:
                return Fed(entries, b"", False, next_at, found.now)
            mark = _packed(line[-1])
            more = await self._read(feeding.floor, queue, line[-1], at)
            if more is None or _is_odd(more):
                return None
            found = more
        return Fed(entries, mark, True, next_at, found.now)

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


def _is_odd(found: Candidates) -> bool:
    return (
        found.odd
        or any(one.odd for one in found.line)
        or any(one.odd and one.run_at <= found.now for one in found.later)
    )


def _next_at(found: Candidates) -> int | None:
    """When a job is due that is not fed now."""
    waits = [one.run_at for one in found.later if one.odd]
    if found.next_at is not None:
        waits.append(found.next_at)
    if len(found.later) == _AT_ONCE:
        waits.append(found.later[-1].run_at)
    return min(waits, default=None)


def _packed(one: Candidate) -> bytes:
    return _MARK.pack(one.priority, one.run_at, one.id)


def _unpacked(mark: bytes) -> tuple[bytes, int, int, bool]:
    priority, run_at, job_id = _MARK.unpack(mark)
    return job_id, priority, run_at, False
