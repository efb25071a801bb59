"""The refill of one window, page by page: its jobs are given out while the rest is on its way."""

from __future__ import annotations

import struct

from headrace.backends.streams.entries import has_lost, of_stored
from headrace.backends.streams.options import StreamsOptions
from headrace.backends.streams.truth import Candidate, Candidates, Truth
from headrace.backends.streams.windows import OPEN, Fed, Feeding, Windows
from headrace.seam.records import Stamp

_PAGE = 2_000
_MARK = struct.Struct(">hq16s")


class Refill:
    """What a window lacks, as far as there is room. Each page leaves a mark, where other processes go on if this one
    does not."""

    def __init__(
        self,
        truth: Truth,
        windows: Windows,
        options: StreamsOptions,
        queue: str,
        token: str,
        feeding: Feeding,
        at: Stamp,
    ) -> None:
        self.queue = queue
        self.is_over = False
        self._truth = truth
        self._windows = windows
        self._options = options
        self._token = token
        self._feeding = feeding
        self._at = at
        self._room = max(0, options.window - feeding.waiting)
        self._pages = options.window // _PAGE + 4
        self._next_at: int | None = None

    def stop(self) -> None:
        """The next page is the last one."""
        self._pages = 0

    async def read(self, mark: bytes) -> Candidates | None:
        """A page, after a mark. None: another Valkey is in charge."""
        start = _unpacked(mark) if mark else None
        most, horizon = self._options.entry_bytes, self._options.horizon
        return await self._truth.candidates(self._feeding.floor, self.queue, _PAGE, start, horizon, most, self._at)

    async def first(self, found: Candidates, wanted: int) -> bytes | None:
        """Feed the first page, with what is due later. The caller will take this many jobs. Returns the mark; None:
        somebody else has emptied the window, or feeds it."""
        self._next_at = _next_at(found)
        later = [one for one in found.later if not one.odd]
        before = self._feeding.mark if self._feeding.mode == OPEN else b""
        return await self._feed(found, later, before, wanted)

    async def next(self, found: Candidates, mark: bytes) -> bytes | None:
        """Feed the page after this mark."""
        return await self._feed(found, [], mark, 0)

    async def _feed(self, found: Candidates, later: list[Candidate], before: bytes, wanted: int) -> bytes | None:
        lacking = (await self._lacking(later))[: self._room]
        unknown = await self._lacking(found.line)
        taken = unknown[: self._room - len(lacking)]
        rows = await self._truth.feed(lacking + taken)
        entries = [of_stored(row, self._feeding.loss) for row in rows]
        self._room -= len(lacking) + len(taken)
        self._pages -= 1
        mark = b""
        if is_full := len(taken) < len(unknown):
            first = next(number for number, one in enumerate(found.line) if one.id == unknown[len(taken)])
            mark = _packed(found.line[first - 1]) if first else before
        elif len(found.line) == _PAGE:
            mark = _packed(found.line[-1])
        self.is_over = is_full or not mark or self._pages < 1
        fed = Fed(entries, any(map(has_lost, rows)), mark, is_full or bool(mark), self._next_at, found.now)
        done = await self._windows.feed(self.queue, self._token, fed, wanted, self._at, last=self.is_over)
        return mark if done else None

    async def _lacking(self, jobs: list[Candidate]) -> list[bytes]:
        return await self._windows.unknown(self.queue, self._token, [one.id for one in jobs])


def is_odd(found: Candidates) -> bool:
    """Whether only PostgreSQL can give out the jobs of this queue."""
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
    if len(found.later) == _PAGE:
        waits.append(found.later[-1].run_at)
    return min(waits, default=None)


def _packed(one: Candidate) -> bytes:
    return _MARK.pack(one.priority, one.run_at, one.id)


def _unpacked(mark: bytes) -> Candidate:
    priority, run_at, job_id = _MARK.unpack(mark)
    return Candidate(job_id, priority, run_at, False)
