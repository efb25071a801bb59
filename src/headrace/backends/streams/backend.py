"""A store of two servers: PostgreSQL keeps the jobs, and Valkey gives out the next ones of each queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeGuard

from msgspec.structs import replace

from headrace.backends.postgres.rows import are_plain, weight
from headrace.backends.redis.endpoint import Endpoint
from headrace.backends.redis.hints import Listener as WindowListener
from headrace.backends.streams import entries
from headrace.backends.streams.changing import Changing
from headrace.backends.streams.claiming import Claiming
from headrace.backends.streams.connections import WindowConnections
from headrace.backends.streams.deliveries import Deliveries, Known
from headrace.backends.streams.health import WindowHealth
from headrace.backends.streams.hints import BothHints
from headrace.backends.streams.options import StreamsOptions
from headrace.backends.streams.patience import Patience
from headrace.backends.streams.pulse import Pulse
from headrace.backends.streams.reading import Reading
from headrace.backends.streams.relay import Relay
from headrace.backends.streams.rules import WindowedPolicies, WindowedReferences, WindowedTicks, WindowedTransfers
from headrace.backends.streams.truth import MOST_LOST, STORED_AT, StoredAt, Truth
from headrace.backends.streams.windows import NotInCharge, Windows
from headrace.errors import BackendError, ConfigError, Unavailable
from headrace.seam import records as r
from headrace.types import JobState

log = logging.getLogger("headrace")

_PATIENCE = 0.25
"""Seconds that Valkey has to take what is only faster with it."""
_ANSWER = 5.0
"""Seconds that it has to say what PostgreSQL does not know."""
_OPENING = 2.0
"""Seconds that it has to answer a process that begins."""
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
        pulse: Pulse | None = None,
    ) -> None:
        self.truth = truth
        self._endpoint = endpoint
        self._prefix = prefix
        self.options = options or StreamsOptions()
        self._deliveries = deliveries or Deliveries()
        self._pulse = pulse or Pulse()
        connections = WindowConnections(endpoint)
        self._windows = Windows(connections, self.options, endpoint.where, truth.take_charge)
        self._relay = Relay(truth, self._windows, self.options)
        self._claiming = Claiming(truth, self._windows, self._relay, self._deliveries, self.options.window)
        self._changing = Changing(truth, self._windows, self._relay, self._deliveries)
        self._quickly, self._patiently = Patience(_PATIENCE), Patience(_ANSWER)
        reading = Reading(truth, self._windows, self._changing, self._patiently)
        self.fetch, self.scan, self.stats = reading.fetch, reading.scan, reading.stats
        self.alter, self.sweep, self.now = self._changing.alter, truth.sweep, truth.now
        self._notes = truth.tell_by(self._tell)
        self._signals = WindowListener(connections, prefix, lambda _: self._windows.base, endpoint.where)
        self.hints = None if truth.hints is None else BothHints(truth.hints, self._signals)
        self.policies = WindowedPolicies(truth.policies, self._relay)
        self.ticks = WindowedTicks(truth.ticks, self._relay)
        self.windows = WindowHealth(truth, self._windows)
        self.limits = replace(truth.limits, durable=f"{truth.limits.durable}, on PostgreSQL")
        self.references = WindowedReferences(truth.references, self._changing)
        self.tx, self.documents, self.parts = truth.tx, truth.documents, truth.parts
        self.tx.floor_of = self._deliveries.floor_of
        self.archive, self.tracks, self.tables = truth.archive, truth.tracks, truth.tables
        self.transfers, self.reserve = WindowedTransfers(truth.transfers, self._changing), truth.reserve
        self.journal, self.events, self.tidy, self.usage = truth.journal, truth.events, truth.tidy, truth.usage
        self.migrator = truth.migrator

    def sibling(self) -> StreamsBackend:
        return type(self)(
            self.truth.sibling(),
            self._endpoint,
            prefix=self._prefix,
            options=self.options,
            deliveries=self._deliveries,
            pulse=self._pulse,
        )

    async def open(self) -> None:
        await self.truth.open()
        self._windows.base = f"{self._prefix}{{streams}}:{await self.truth.name_streams()}"
        self._windows.connections.open()
        try:
            async with asyncio.timeout(_OPENING):
                await self._windows.check()
        except BaseException as error:
            if isinstance(error, ConfigError) or not isinstance(error, TimeoutError | Unavailable):
                await self.close()
                raise
            log.warning("%s does not answer: until it does, no job of a window is given out", self._endpoint.where)
        self._windows.connections.known_good()

    async def close(self) -> None:
        await self._relay.stop()
        await self._notes.flush()
        await self._windows.connections.close()
        await self.truth.close()

    async def checks(self, kept: int = 0) -> list[tuple[str, str, str, str]]:
        """What is worth knowing of both servers, and of the way to them."""
        return [*await self.truth.checks(kept), *await self._windows.connections.checks(self._windows.base)]

    async def _tell(self, queue: str) -> None:
        await self._quickly(lambda: self._windows.tell(queue))

    # -- writing

    async def insert(self, rows: Sequence[r.Row], at: r.Stamp = None) -> list[r.Inserted]:
        await self._changing.before_insert(rows, at)
        await self._know({row.queue for row in rows}, at)
        feeds = dict(self._windows.feeds)
        STORED_AT.set(None)
        answers = await self.truth.insert(rows, at)
        stored = STORED_AT.get()
        answers = await self._changing.told_running(rows, answers, at)
        new: dict[str, list[r.Row]] = {}
        for row, answer in zip(rows, answers, strict=True):
            if answer.status is r.InsertStatus.NEW:
                new.setdefault(row.queue, []).append(row)
        for queue, some in new.items():
            with suppress(BackendError):
                if any(self._is_odd(row) for row in some):
                    await self._relay.close(queue, at)
                elif self._may_push(stored) and queue in feeds and len(some) <= _PUSHED:
                    self._notes.take_back(queue)
                    packed = [entries.of_row(row, weight(row), stored.now) for row in some]
                    await self._quickly(partial(self._windows.push, queue, feeds[queue], packed, stored.now, at))
        return answers

    def _may_push(self, stored: StoredAt | None) -> TypeGuard[StoredAt]:
        """Not into a window that is not in charge: the one that is would give the jobs out as well."""
        return stored is not None and stored.floor == self._windows.floor

    async def _know(self, queues: Collection[str], at: r.Stamp) -> None:
        """A process that does not claim has to ask which windows there are."""
        if len(queues) <= _ASKED:
            with suppress(BackendError):
                for queue in queues:
                    await self._quickly(partial(self._windows.know, queue, at))

    def _is_odd(self, row: r.Row) -> bool:
        return row.expires is not None or row.group is not None or weight(row) > self.options.entry_bytes

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
        if not are_plain(batch) or len(self._deliveries.known(batch).leases) < len(batch):
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
        unsure = [s for s, state in zip(batch, states, strict=True) if state is None and _lease(s) not in known.leases]
        found = Known(0, set())
        if unsure:
            with suppress(BackendError):
                found = await self._patiently(lambda: self._changing.given_elsewhere(unsure, at))
        if found.leases:
            again = [s for s in unsure if _lease(s) in found.leases]
            late = dict(zip(map(_lease, again), await self.truth.finish_given(again, found, at), strict=True))
            states = [late.get(_lease(s)) if state is None else state for s, state in zip(batch, states, strict=True)]
        given = self._deliveries.by_queue(map(_lease, batch))
        with suppress(BackendError):
            for queue, some in given.items():
                await self._quickly(partial(self._windows.settle, queue, some, at))
        self._deliveries.forget(pair for some in given.values() for pair in some)
        return states

    async def renew(self, beat: r.Beat, at: r.Stamp = None) -> r.Renewed:
        given = self._deliveries.by_queue((job_id, epoch, beat.holder) for job_id, epoch in beat.leases)
        mine: set[tuple[r.JobId, int]] = set()
        unsure = {pair for pairs in given.values() for pair in pairs}
        with suppress(TimeoutError, BackendError):
            async with asyncio.timeout(_share(beat)):
                await self._renew_given(beat, given, mine, unsure, at)
        renewed = await self.truth.renew(beat, at)
        lost = [pair for pair in renewed.lost if pair not in mine and pair not in unsure]
        gone = set(lost)
        self._deliveries.forget(pair for pairs in given.values() for pair in pairs if pair in gone)
        renewed = replace(renewed, lost=lost, busy=[*renewed.busy, *(p for p in renewed.lost if p in unsure)])
        try:
            async with asyncio.timeout(_share(beat)):
                if beat.census:
                    renewed = await self._changing.census(beat, renewed, at)
                if beat.leaving:
                    await self._changing.leave(beat, at)
        except TimeoutError:
            renewed = replace(renewed, doubtful=beat.census)
        return renewed

    async def _renew_given(
        self,
        beat: r.Beat,
        given: dict[str, list[tuple[r.JobId, int]]],
        mine: set[tuple[r.JobId, int]],
        unsure: set[tuple[r.JobId, int]],
        at: r.Stamp,
    ) -> None:
        """Tell Valkey of a beat. Deliveries that are still the holder's come to ``mine``; those that Valkey has said
        something of leave ``unsure``."""
        try:
            self._pulse.beat(await self._windows.beat(at), beat.gap)
            if beat.progress:
                await self._changing.take_over_named(beat, at)
            for queue, pairs in given.items():
                good = await self._windows.renew(queue, beat.holder, beat.lease_for, pairs, at)
                mine.update(pair for pair, is_mine in zip(pairs, good, strict=True) if is_mine)
                unsure.difference_update(pairs)
        except NotInCharge:
            unsure.clear()

    async def reap(self, req: r.Reap, at: r.Stamp = None) -> list[r.Reaped]:
        reaped: list[r.Reaped] = []
        pulse = await self._feel(req, at)
        while True:
            found = 0 if pulse is None else await self._changing.take_back(req.limit - len(reaped), pulse, at)
            reaped += await self.truth.reap(replace(req, limit=req.limit - len(reaped)), at)
            if not found or len(reaped) >= req.limit:
                break
        waiting = [one for one in reaped if one.state is JobState.AVAILABLE]
        odd = {one.queue for one in waiting if one.lost > MOST_LOST}
        for queue in dict.fromkeys(one.queue for one in waiting):
            with suppress(BackendError):
                await (self._relay.close(queue, at) if queue in odd else self._relay.look(queue, at))
        return reaped

    async def _feel(self, req: r.Reap, at: r.Stamp) -> Sequence[int] | None:
        """By what Valkey tells whether it has given living workers time to bring their beats. None: it has not."""
        with suppress(BackendError):
            await self._patiently(lambda: self._windows.beat(at))
            await self._changing.watch(at)
            return () if req.holder is None else self._pulse.told(req.gap, req.steady)
        return None


def _share(beat: r.Beat) -> float:
    """Seconds that Valkey has of a beat: there are six in a lease, and PostgreSQL must hear of each."""
    return max(0.25, beat.lease_for / 12e6)


def _lease(s: r.Settlement) -> tuple[r.JobId, int, str]:
    return s.id, s.epoch, s.holder
