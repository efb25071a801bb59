"""A store of two servers: PostgreSQL keeps the jobs, and Valkey gives out the next ones of each queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from headrace.backends.postgres.rows import are_plain, weight
from headrace.backends.redis.endpoint import Endpoint
from headrace.backends.redis.hints import Listener as WindowListener
from headrace.backends.streams import entries
from headrace.backends.streams.changing import Changing
from headrace.backends.streams.claiming import Claiming
from headrace.backends.streams.connections import WindowConnections
from headrace.backends.streams.deliveries import Deliveries
from headrace.backends.streams.health import WindowHealth
from headrace.backends.streams.hints import BothHints
from headrace.backends.streams.options import StreamsOptions
from headrace.backends.streams.relay import Relay
from headrace.backends.streams.rules import WindowedPolicies, WindowedReferences, WindowedTicks, WindowedTransfers
from headrace.backends.streams.truth import STORED_AT, Truth
from headrace.backends.streams.windows import Windows
from headrace.errors import BackendError
from headrace.seam import records as r
from headrace.types import JobState

T = TypeVar("T")

_PATIENCE = 0.25
"""Seconds that Valkey has to take what is only faster with it."""
_REST = 1.0
"""Seconds for which it is left alone after that."""
_PUSHED = 1_000
_ASKED = 10
"""Queues of one insert that are asked about at most; jobs of more are left to a look."""


class StreamsBackend:
    """See the migration ``0024_streams`` and ``lua/common.lua`` for what is where."""

    blocking = None

    def __init__(
        self,
        truth: Truth,
        endpoint: Endpoint,
        *,
        prefix: str = "headrace",
        options: StreamsOptions | None = None,
        deliveries: Deliveries | None = None,
    ) -> None:
        self.truth = truth
        self._endpoint = endpoint
        self._prefix = prefix
        self._options = options or StreamsOptions()
        self._deliveries = deliveries or Deliveries()
        base = f"{prefix}{{streams}}"
        connections = WindowConnections(endpoint)
        self._windows = Windows(connections, base, self._options, truth.raise_floor)
        self._relay = Relay(truth, self._windows, self._options)
        self._claiming = Claiming(truth, self._windows, self._relay, self._deliveries, self._options.window)
        self._changing = Changing(truth, self._windows, self._relay, self._deliveries)
        self._notes = truth.tell_by(self._tell)
        self._signals = WindowListener(connections, prefix, lambda _: base, endpoint.where)
        self.hints = None if truth.hints is None else BothHints(truth.hints, self._signals)
        self.policies = WindowedPolicies(truth.policies, self._relay)
        self.ticks = WindowedTicks(truth.ticks, self._relay)
        self.windows = WindowHealth(self._windows)
        self._rests_until = 0.0
        self.limits = replace(truth.limits, durable=f"{truth.limits.durable}, on PostgreSQL")
        self.references = WindowedReferences(truth.references, self._changing)
        self.tx, self.documents, self.parts = truth.tx, truth.documents, truth.parts
        self.archive, self.tracks, self.tables = truth.archive, truth.tracks, truth.tables
        self.transfers, self.reserve = WindowedTransfers(truth.transfers, self._changing), truth.reserve
        self.journal, self.events, self.tidy, self.usage = truth.journal, truth.events, truth.tidy, truth.usage
        self.migrator = truth.migrator

    def sibling(self) -> StreamsBackend:
        return type(self)(
            self.truth.sibling(),
            self._endpoint,
            prefix=self._prefix,
            options=self._options,
            deliveries=self._deliveries,
        )

    async def open(self) -> None:
        await self.truth.open()
        self._windows.connections.open()
        try:
            await self._windows.check()
            self._windows.connections.known_good()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._relay.stop()
        await self._notes.flush()
        await self._windows.connections.close()
        await self.truth.close()

    async def now(self, at: r.Stamp = None) -> int:
        return await self.truth.now(at)

    async def checks(self, kept: int = 0) -> list[tuple[str, str, str, str]]:
        """What is worth knowing of the way to PostgreSQL."""
        return await self.truth.checks(kept)

    async def _tell(self, queue: str) -> None:
        await self._quickly(lambda: self._windows.tell(queue))

    async def _quickly(self, call: Callable[[], Awaitable[T]]) -> T:
        """Wait for Valkey only for a moment."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._rests_until:
            raise BackendError("Valkey is left alone for a moment")
        try:
            async with asyncio.timeout(_PATIENCE):
                return await call()
        except (TimeoutError, BackendError) as error:
            self._rests_until = loop.time() + _REST
            raise BackendError("Valkey did not answer in a moment") from error

    # -- writing

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        await self._changing.before_insert(rows, at)
        await self._know({row.queue for row in rows})
        feeds = dict(self._windows.feeds)
        STORED_AT.set(None)
        answers = await self.truth.insert(rows, at)
        now = STORED_AT.get()
        answers = await self._changing.told_running(rows, answers, at)
        new: dict[str, list[r.Row]] = {}
        for row, answer in zip(rows, answers, strict=True):
            if answer.status is r.InsertStatus.NEW:
                new.setdefault(row.queue, []).append(row)
        for queue, some in new.items():
            with suppress(BackendError):
                if any(self._is_odd(row) for row in some):
                    await self._changing.close(queue, at)
                elif now is not None and queue in feeds and len(some) <= _PUSHED:
                    self._notes.take_back(queue)
                    packed = [entries.of_row(row, weight(row), now) for row in some]
                    await self._quickly(partial(self._windows.push, queue, feeds[queue], packed, at))
        return answers

    async def _know(self, queues: Collection[str]) -> None:
        """A process that does not claim has to ask which windows there are."""
        if len(queues) <= _ASKED:
            with suppress(BackendError):
                for queue in queues:
                    await self._quickly(partial(self._windows.know, queue))

    def _is_odd(self, row: r.Row) -> bool:
        return row.expires is not None or row.group is not None or weight(row) > self._options.entry_bytes

    async def claim(self, req: r.Claim, at: r.Stamp = None) -> r.Claimed:
        claimed = await self._claiming.claim(req, at)
        self._signals.claimed(req, claimed)
        return claimed

    async def finish(self, batch: Sequence[r.Settlement], at: r.Stamp = None) -> list[JobState | None]:
        states = await self._finish(batch, at)
        self._signals.settled()
        return states

    async def finish_and_claim(
        self, batch: Sequence[r.Settlement], req: r.Claim, at: r.Stamp = None
    ) -> tuple[list[JobState | None], r.Claimed]:
        if not are_plain(batch) or len(self._deliveries.known(batch)) < len(batch):
            return await self._finish(batch, at), await self.claim(req, at)
        finishing = asyncio.ensure_future(self._finish(batch, at))
        try:
            claimed = await self.claim(req, at)
        except BaseException:
            await asyncio.wait([finishing])
            raise
        return await finishing, claimed

    async def _finish(self, batch: Sequence[r.Settlement], at: r.Stamp) -> list[JobState | None]:
        if not batch:
            return []
        known = self._deliveries.known(batch)
        states = await self.truth.finish_given(batch, known, at)
        unsure = [s for s, state in zip(batch, states, strict=True) if state is None and _lease(s) not in known]
        if unsure and (found := await self._changing.given_elsewhere(unsure, at)):
            again = [s for s in unsure if _lease(s) in found]
            late = dict(zip(map(_lease, again), await self.truth.finish_given(again, found, at), strict=True))
            states = [late.get(_lease(s)) if state is None else state for s, state in zip(batch, states, strict=True)]
        given = self._deliveries.of(batch)
        with suppress(BackendError):
            for queue, some in given.items():
                await self._quickly(partial(self._windows.settle, queue, some, at))
        self._deliveries.forget(pair for some in given.values() for pair in some)
        return states

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        if beat.progress:
            await self._changing.take_over_named(beat, at)
        mine: set[tuple[r.JobId, int]] = set()
        unsure: list[tuple[r.JobId, int]] = []
        for queue, given in self._deliveries.by_queue(beat.leases, beat.holder).items():
            try:
                good = await self._windows.renew(queue, beat.holder, beat.lease_for, given, at)
                mine.update(pair for pair, is_mine in zip(given, good, strict=True) if is_mine)
            except BackendError:
                unsure += given
        renewed = await self.truth.renew(beat, at)
        lost = [pair for pair in renewed.lost if pair not in mine and pair not in unsure]
        self._deliveries.forget(lost)
        renewed = replace(renewed, lost=lost, busy=[*renewed.busy, *(p for p in renewed.lost if p in unsure)])
        if beat.census:
            renewed = await self._changing.census(beat, renewed, at)
        if beat.leaving:
            await self._changing.leave(beat, at)
        return renewed

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        reaped: list[r.Reaped] = []
        while True:
            found = await self._changing.take_back(req.limit - len(reaped), at)
            reaped += await self.truth.reap(replace(req, limit=req.limit - len(reaped)), at)
            if not found or len(reaped) >= req.limit:
                break
        for queue in dict.fromkeys(one.queue for one in reaped if one.state is JobState.AVAILABLE):
            with suppress(BackendError):
                await self._changing.close(queue, at)
        return reaped

    async def alter(self, sel: r.Selector, change: r.Change, at: r.Stamp = None) -> list[r.Altered]:
        return await self._changing.alter(sel, change, at)

    async def sweep(self, clause: r.SweepClause, at: r.Stamp = None) -> r.Swept:
        return await self.truth.sweep(clause, at)

    # -- reading

    async def fetch(
        self, names: Sequence[r.JobId | r.JobKey], want: frozenset[str] = frozenset(), at: r.Stamp = None
    ) -> list[r.Record | None]:
        records = await self.truth.fetch(names, want, at)
        waiting = [one for one in records if one is not None and one.state is JobState.AVAILABLE]
        if waiting and await self._changing.take_over(waiting, at):
            records = await self.truth.fetch(names, want, at)
        return records

    async def scan(self, sel: r.Selector, after: str | None = None, limit: int = 100, at: r.Stamp = None) -> r.Page:
        await self._changing.take_over_all(None if sel.queue is None else [sel.queue], at)
        return await self.truth.scan(sel, after, limit, at)

    async def stats(self, at: r.Stamp = None, *, queues: Sequence[str] | None = None) -> r.Stats:
        given = await self._changing.count_or_take_over(queues, at)
        stats = await self.truth.stats(at, queues=queues)
        if not given:
            return stats
        return replace(stats, queues=[_with(one, given.get(one.queue, 0)) for one in stats.queues])


def _lease(s: r.Settlement) -> tuple[r.JobId, int, str]:
    return s.id, s.epoch, s.holder


def _with(stats: r.QueueStats, given: int) -> r.QueueStats:
    """The numbers of a queue, some of whose waiting jobs were given out."""
    given = min(given, stats.available)
    return replace(stats, available=stats.available - given, running=stats.running + given)
