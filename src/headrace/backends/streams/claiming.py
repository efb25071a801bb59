"""Claims: from windows, and from PostgreSQL for the queues that it gives out itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from headrace.backends.claims import both
from headrace.backends.postgres.rows import weight
from headrace.backends.streams.deliveries import Deliveries
from headrace.backends.streams.relay import Relay
from headrace.backends.streams.truth import Truth
from headrace.backends.streams.windows import BARRED, CLOSED, OPEN, Found, QueueInfo, Windows
from headrace.seam import records as r

_LOOK = 100_000
"""Microseconds after which a claim that finds too little looks into PostgreSQL again."""
_MOMENT = 0
"""Another process feeds a window, or closes it."""
_PARTS = 8
_SHARE = 2
"""A window that has spilled is fed when it is down to one part in this many."""


class Claiming:
    """One claim at a time, on any number of queues."""

    def __init__(self, truth: Truth, windows: Windows, relay: Relay, deliveries: Deliveries, window: int) -> None:
        self._truth = truth
        self._windows = windows
        self._relay = relay
        self._deliveries = deliveries
        self._window = window

    async def claim(self, req: r.Claim, at: r.Stamp) -> r.Claimed:
        """See :meth:`headrace.seam.protocol.Backend.claim`."""
        queues = list(dict.fromkeys(req.queues))
        if not queues or req.limit <= 0:
            return await self._truth.claim(req, at)
        are_open = all(queue in self._windows.feeds for queue in queues)
        found = await self._take(req, queues, req.limit if are_open else 0, at)
        looked: set[str] = set()
        if not found.cut and len(found.jobs) < req.limit:
            lacking = [queue for queue, info in found.queues.items() if _must_look(info, at)]
            if lacking:
                done = await asyncio.gather(*(self._relay.look(queue, at, req.limit) for queue in lacking))
                looked = {queue for queue, did in zip(lacking, done, strict=True) if did}
            if lacking or not are_open:
                found = await self._more(req, queues, found, 0, at)
        if (not are_open or looked) and not _closed(found):
            found = await self._more(req, queues, found, req.limit, at)
        rest = None
        if closed := _closed(found):
            found, rest = await self._shared(req, queues, closed, found, at)
        for queue, info in found.queues.items():
            if info.mode == OPEN and (info.look or (info.full and info.left * _SHARE < self._window)):
                self._relay.look_soon(queue, at)
        return _claimed(req, found, rest, looked)

    async def _shared(
        self, req: r.Claim, queues: Sequence[str], closed: Sequence[str], found: Found, at: r.Stamp
    ) -> tuple[Found, r.Claimed]:
        """Each queue of PostgreSQL, and all windows together, get an even share, and then what others left over."""
        parts = _parts(queues, closed)
        rest = r.Claimed([])
        for leftover in (False, True):
            for number, part in enumerate(parts):
                left = req.limit - len(found.jobs) - len(rest.jobs)
                if left <= 0 or found.cut:
                    return found, rest
                share = left if leftover else -(-left // (len(parts) - number))
                if part is None:
                    found = await self._more(req, queues, found, share, at)
                    continue
                if leftover and len(parts) == 1:
                    continue
                claimed = self._judged(await self._truth.claim(replace(req, queues=part, limit=share), at))
                rest = both(rest, claimed if len(claimed.jobs) < share else replace(claimed, next_in=None))
        return found, rest

    def _judged(self, claimed: r.Claimed) -> r.Claimed:
        """The same: PostgreSQL does not know what a window gave out that was lost."""
        loss = self._windows.loss
        if loss is None:
            return claimed
        jobs = [
            replace(job, begun=True) if not job.begun and loss.may_concern(job.enqueued_at, job.run_at) else job
            for job in claimed.jobs
        ]
        return replace(claimed, jobs=jobs)

    async def _take(self, req: r.Claim, queues: Sequence[str], limit: int, at: r.Stamp) -> Found:
        found = await self._windows.claim(req, queues, limit, at)
        self._deliveries.note(req.holder, found.floor, found.jobs)
        barred = [queue for queue, info in found.queues.items() if info.mode == BARRED]
        for queue in barred:
            await self._relay.close(queue, at)
            found.queues[queue] = found.queues[queue]._replace(mode=CLOSED, closed=1)
        return found

    async def _more(self, req: r.Claim, queues: Sequence[str], found: Found, limit: int, at: r.Stamp) -> Found:
        """What windows have by now, besides what was found, but no more than that many jobs."""
        taken = sum(map(weight, found.jobs))
        left = min(limit, req.limit - len(found.jobs))
        if found.jobs and taken >= req.max_bytes:
            return found
        more = await self._take(replace(req, max_bytes=max(1, req.max_bytes - taken)), queues, left, at)
        return more._replace(jobs=found.jobs + more.jobs, doubtful=found.doubtful or more.doubtful)


def _closed(found: Found) -> list[str]:
    return [queue for queue, info in found.queues.items() if info.mode == CLOSED]


def _parts(queues: Sequence[str], closed: Sequence[str]) -> list[tuple[str, ...] | None]:
    """Whose shares there are, in order; None: those of windows. Of very many queues, PostgreSQL shares out its own."""
    if len(closed) > _PARTS or len(closed) == len(queues):
        parts: list[tuple[str, ...] | None] = [tuple(closed)]
        return parts if len(closed) == len(queues) else [None, *parts]
    return list(dict.fromkeys((queue,) if queue in closed else None for queue in queues))


def _claimed(req: r.Claim, found: Found, rest: r.Claimed | None, looked: Collection[str]) -> r.Claimed:
    jobs = found.jobs + ([] if rest is None else rest.jobs)
    next_in: int | None = None
    if len(jobs) < req.limit:
        waits = [
            wait for queue, info in found.queues.items() if (wait := _wait(info, found, queue in looked)) is not None
        ]
        if rest is not None and rest.next_in is not None:
            waits.append(rest.next_in)
        next_in = 0 if found.cut else min(waits, default=None)
    if rest is None:
        return r.Claimed(jobs, next_in, doubtful=found.doubtful)
    return replace(rest, jobs=jobs, next_in=next_in, doubtful=found.doubtful)


def _must_look(info: QueueInfo, at: r.Stamp) -> bool:
    if info.mode == CLOSED:
        return info.closed <= 0
    return info.mode != OPEN or info.look or info.full or at is not None or info.looked > _LOOK


def _wait(info: QueueInfo, found: Found, looked: bool) -> int | None:
    """How long until another claim is worth it."""
    if info.mode == CLOSED:
        return None
    if info.mode != OPEN or info.look or info.full:
        return _MOMENT
    waits = [] if looked else [max(0, _LOOK - info.looked)]
    if info.next_at is not None:
        waits.append(max(0, info.next_at - found.now))
    return min(waits, default=None)
