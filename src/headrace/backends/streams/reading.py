"""Reads: PostgreSQL has the jobs, and Valkey knows which of those that wait were given out. Nothing is written for a
read, but to list the jobs that run; and while Valkey is away, those that it gave out are told to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from headrace.backends.streams.changing import Changing, by_queue
from headrace.backends.streams.deliveries import Delivery
from headrace.backends.streams.patience import Patience
from headrace.backends.streams.truth import Truth
from headrace.backends.streams.windows import Numbers, Windows
from headrace.errors import BackendError
from headrace.seam import records as r
from headrace.types import JobState

_EXACT = 200
"""Deliveries of a queue for which it is known exactly how old the oldest other job is."""


class Reading:
    """``fetch``, ``scan`` and ``stats`` of :class:`headrace.seam.protocol.Backend`."""

    def __init__(self, truth: Truth, windows: Windows, changing: Changing, patience: Patience) -> None:
        self._truth = truth
        self._windows = windows
        self._changing = changing
        self._patience = patience

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        """See the protocol."""
        records = await self._truth.fetch(names, want, at)
        told = iter(await self._told([one for one in records if one is not None], at))
        return [None if one is None else next(told) for one in records]

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        """See the protocol. Only to list what runs, and not what waits, deliveries become leases."""
        wanted = sel.states
        if wanted is not None and JobState.RUNNING in wanted and JobState.AVAILABLE not in wanted:
            with suppress(BackendError):
                await self._changing.take_over_all(None if sel.queue is None else [sel.queue], at)
        page = await self._truth.scan(sel, after, limit, at)
        told = await self._told(page.records, at)
        return replace(page, records=[one for one in told if wanted is None or one.state in wanted])

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        """See the protocol. The age of the oldest due job is that of the first in the window, where many were given
        out."""
        numbers: dict[str, Numbers] = {}
        given: dict[str, list[r.JobId]] = {}
        with suppress(BackendError):
            await self._patience(partial(self._count, numbers, given, queues, at))
        ages = await self._truth.oldest_waiting(given, at)
        stats = await self._truth.stats(at, queues=queues)
        told = [_with(one, numbers[one.queue], ages) if one.queue in numbers else one for one in stats.queues]
        return replace(stats, queues=told)

    async def _count(
        self, numbers: dict[str, Numbers], given: dict[str, list[r.JobId]], queues: Sequence[str] | None, at: r.Stamp
    ) -> None:
        names = await self._windows.queues(at) if queues is None else queues
        for queue, counted in zip(
            names, await asyncio.gather(*(self._windows.health(queue, at) for queue in names)), strict=True
        ):
            if counted.pending:
                numbers[queue] = counted
        few = [queue for queue, counted in numbers.items() if counted.pending <= _EXACT][:_EXACT]
        for queue in few:
            given[queue] = [one.id for one in await self._windows.held(queue, _EXACT, at)]

    async def _told(self, records: Sequence[r.Record], at: r.Stamp) -> list[r.Record]:
        """The same, with those that were given out as running."""
        given: dict[r.JobId, Delivery] = {}
        waiting = [one for one in records if one.state is JobState.AVAILABLE]
        with suppress(BackendError):
            await self._patience(partial(self._find, given, waiting, at))
        good = {one.id: found for one in waiting if (found := given.get(one.id)) and found.counts_after(one.epoch)}
        if not good:
            return list(records)
        now, workers = await self._truth.workers_of({one.holder for one in good.values()}, at)
        return [_running(one, good.get(one.id), now, workers) for one in records]

    async def _find(self, given: dict[r.JobId, Delivery], waiting: Sequence[r.Record], at: r.Stamp) -> None:
        for queue, ids in by_queue(waiting).items():
            given.update({one.id: one for one in await self._windows.find(queue, ids, at)})


def _running(record: r.Record, given: Delivery | None, now: int, workers: dict[str, str]) -> r.Record:
    if given is None:
        return record
    return replace(
        record,
        state=JobState.RUNNING,
        epoch=given.epoch,
        worker=workers.get(given.holder, ""),
        lease_until=now + given.left,
    )


def _with(stats: r.QueueStats, numbers: Numbers, ages: Mapping[str, int | None]) -> r.QueueStats:
    """The numbers of a queue, some of whose waiting jobs were given out."""
    given = min(numbers.pending, stats.due)
    age = ages.get(stats.queue, numbers.oldest)
    return replace(stats, available=stats.available - given, running=stats.running + given, oldest_due_age=age)
