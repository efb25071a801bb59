"""Reads schedules from a store: what is there, what comes, what was, and what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from datetime import datetime
from heapq import nlargest
from itertools import islice
from typing import Protocol

from headrace.core.durations import micros
from headrace.core.names import check_name
from headrace.core.numbers import check_whole
from headrace.core.store_access import Owner, StoreAccess
from headrace.core.view import View
from headrace.errors import ConfigError, ScheduleNotFound
from headrace.payloads.pack import Packer
from headrace.schedules.plan import Definition, run_at, unpack
from headrace.schedules.spec import ScheduleInfo, TickInfo, aware, schedule_info, tick_info, unreadable_info
from headrace.seam.instants import from_datetime, to_datetime
from headrace.seam.protocol import Backend, TickStore
from headrace.seam.records import JobId
from headrace.seam.ticks import Schedule, ScheduleSelector, Tick, TickOutcome
from headrace.text import shown
from headrace.types import Duration, JobState

_PAGE = 100
_LONG_PAGE = 500
_MOST_READ = 10_000
"""Slots of one schedule that are read for its health."""
_SLOWEST = 10


class ScheduleHealth(View, frozen=True, kw_only=True):
    """How a schedule did in a period: the slots of that time, and their jobs.

    >>> import asyncio
    >>> from headrace import App, Every
    >>> app = App("memory://")
    >>> @app.task(name="ping")
    ... def ping() -> None: ...
    >>> async def main() -> ScheduleHealth:
    ...     async with app:
    ...         await app.schedules.put(Every("1h", ping.job()))
    ...         await app.schedules.run("ping")
    ...         await app.drain()
    ...         [health] = await app.schedules.health("ping", period="1d", slow="1m")
    ...         return health
    >>> health = asyncio.run(main())
    >>> health.stale, health.fired, health.completed, health.failure_rate, health.coverage, health.slow
    ('', 1, 1, 0.0, 1.0, [])
    """

    name: str
    stale: str
    """``overdue``: nobody plans it. ``silent``: its last slots were skipped or missed. Else empty."""
    fired: int
    skipped: int
    missed: int
    """Slots."""
    completed: int
    failed: int
    cancelled: int
    """Jobs of slots that fired, by how they ended. The others have not ended, or it is not known."""
    coverage: float | None
    """Of the slots that fired or were missed, the share that fired and was not cancelled; None: there were none."""
    failure_rate: float | None
    """Of the jobs that ended, the share that failed; None: there were none."""
    slow: list[TickInfo]
    """Slots whose jobs ran longer than ``slow``: the ten slowest, slowest first."""
    complete: bool
    """False: there were more than 10,000 slots, and the earlier ones were not read."""


class ScheduleAccess(StoreAccess, Protocol):
    """Access to a store, and the packer that makes jobs for it."""

    packer: Packer


class ScheduleQueries:
    """Reads the schedules of a store. Nothing here changes them."""

    def __init__(self, owner: Owner[ScheduleAccess], dynamic: Collection[str] = ()) -> None:
        self._owner = owner
        self._dynamic = dynamic
        """The schedules for which this process has a function that says when the next slot comes."""

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises ``ScheduleNotFound``."""
        known = await self._known(name)
        return self._info(known)

    async def list(
        self, *, tenant: str | None = None, queue: str | None = None, after: str | None = None, limit: int = 1_000
    ) -> Sequence[ScheduleInfo]:
        """Schedules by name: all, or those of a tenant (empty: of none) or a queue. ``after``: the last name seen."""
        check_whole(limit, "limit")
        chosen = self._chosen(tenant, queue, after)
        return [self._info(one) async for one in _first(limit, chosen)]

    async def next(self, name: str, count: int = 5) -> Sequence[datetime]:
        """The next instants at which its jobs will be due, with jitter, including those that are planned already."""
        check_whole(count, "count")
        now = await self._now()
        known = await self._known(name)
        definition = unpack(known.definition)
        ahead = [one for one in await self._history(known.uid, None, _PAGE) if one.run_at > now]
        states = await self._states(ahead)
        planned = [one.run_at for one in ahead if states.get(one.job) == JobState.AVAILABLE]
        left = count if definition.max_runs is None else min(count, max(0, definition.max_runs - known.runs))
        coming = islice(slots(definition, known.slot), left) if known.enabled else ()
        due = sorted(planned) + [run_at(known.uid, slot, definition) for slot in coming]
        return [to_datetime(instant) for instant in due[:count]]

    async def history(self, name: str, limit: int = 20, *, before: datetime | None = None) -> Sequence[TickInfo]:
        """What became of its slots, the latest first. ``before``: the last slot of the page before."""
        check_whole(limit, "limit")
        earlier = None if before is None else aware(before, "before")
        known = await self._known(name)
        return await self._page(known.uid, earlier, limit)

    # -- what is wrong

    async def stale(
        self, *, tenant: str | None = None, queue: str | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[ScheduleInfo]:
        """Enabled schedules that have not fired lately: nobody planned their next slot in time, or their last two slots
        were skipped or missed. The first ``limit`` of them after ``after``, by name.

        It reads schedules in pages of a hundred until it has found enough: all of them, if all are well.
        """
        check_whole(limit, "limit")
        chosen = self._chosen(tenant, queue, after)
        now = await self._now()
        stale = (one async for one in chosen if self._staleness(one, now))
        return [self._info(one) async for one in _first(limit, stale)]

    async def health(
        self,
        *names: str,
        period: Duration = "1d",
        slow: Duration = "1m",
        tenant: str | None = None,
        queue: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[ScheduleHealth]:
        """How schedules did in the ``period`` until now, and which of their jobs ran longer than ``slow``: of those
        named, or of the first ``limit`` after ``after``, by name. It reaches back as far as its history does. Raises
        ``ScheduleNotFound``.

        For each schedule it reads the slots of the period, 500 at a time and 10,000 at most, and the jobs whose end is
        not noted.
        """
        check_whole(limit, "limit")
        length, longer = micros(period, "period"), micros(slow, "slow") / 1e6
        if names and (tenant, queue, after) != (None, None, None):
            raise ConfigError("expected names, or tenant=, queue= and after=, got both")
        chosen = self._named(names) if names else self._chosen(tenant, queue, after)
        now = await self._now()
        found: list[ScheduleHealth] = []
        async for one in _first(limit, chosen):
            read, complete = await self._since(one.uid, now - length, now)
            found.append(_health(one.name, self._staleness(one, now), read, longer, complete))
        return found

    def _staleness(self, known: Schedule, now: int) -> str:
        """Why it has not fired lately; empty if it has, or need not."""
        slot = known.slot
        if slot is None or not known.enabled:
            return ""
        try:
            definition = unpack(known.definition)
        except ValueError:
            return "unreadable"
        late = now - run_at(known.uid, slot, definition)
        if late > 0 and late > min(definition.grace, 2 * definition.rule.gap(slot)):
            return "overdue"
        if definition.dynamic_interval:
            return ""
        # Slots since it last fired or was changed; it did not fire for them.
        passed = slots(definition, definition.first(max(known.last_slot or 0, known.updated_at)), min(slot, now) - 1)
        return "silent" if len([*islice(passed, 2)]) == 2 else ""

    async def _since(self, uid: bytes, first: int, last: int) -> tuple[Sequence[TickInfo], bool]:
        """What became of slots between two instants, and whether these are all."""
        read: list[TickInfo] = []
        before = last + 1
        start = to_datetime(first)
        while len(read) < _MOST_READ:
            page = await self._page(uid, before, _LONG_PAGE)
            read += [one for one in page if one.slot >= start]
            if len(page) < _LONG_PAGE or page[-1].slot < start:
                return read, True
            before = from_datetime(page[-1].slot)
            await asyncio.sleep(0)
        return read, False

    # -- within

    async def _page(self, uid: bytes, before: int | None, limit: int) -> Sequence[TickInfo]:
        page = await self._history(uid, before, limit)
        states = await self._states(page)
        return [tick_info(one, one.state or states.get(one.job, "")) for one in page]

    async def _states(self, page: Sequence[Tick]) -> dict[JobId | None, str]:
        """The states of jobs whose end is not noted."""
        backend = await self._owner.client.backend()
        unknown = [one.job for one in page if one.job is not None and not one.state]
        records = await backend.fetch(unknown, at=self._stamp()) if unknown else []
        return {record.id: record.state.value for record in records if record is not None}

    def _info(self, known: Schedule) -> ScheduleInfo:
        """A schedule that cannot be read is shown as such: it must not spoil a whole list."""
        try:
            definition = unpack(known.definition)
        except ValueError as error:
            return unreadable_info(known, error)
        return schedule_info(known, definition, self._owner.client.packer.envelope)

    def _stamp(self) -> int | None:
        return self._owner.client.clock.stamp()

    async def _now(self) -> int:
        """The store's clock."""
        return await (await self._owner.client.backend()).now(self._stamp())

    async def _ticks(self) -> TickStore:
        backend: Backend = await self._owner.client.backend()
        if backend.ticks is None:
            raise ConfigError("this store does not keep schedules; SQLite, PostgreSQL and Valkey do")
        return backend.ticks

    async def _find(self, name: str) -> Schedule | None:
        return (await self._stored([check_name(name, "name")])).get(name)

    async def _stored(self, names: Sequence[str]) -> dict[str, Schedule]:
        """Those that there are, by name."""
        found = await (await self._ticks()).find(ScheduleSelector(names=names), None, len(names))
        return {one.name: one for one in found}

    async def _history(self, uid: bytes, before: int | None, limit: int) -> Sequence[Tick]:
        return await (await self._ticks()).history(uid, before, limit)

    async def _known(self, name: str) -> Schedule:
        known = await self._find(name)
        if known is None:
            raise ScheduleNotFound(f"no schedule {shown(name)}: it never existed, or was deleted")
        return known

    async def _named(self, names: Sequence[str]) -> AsyncIterator[Schedule]:
        for name in names:
            yield await self._known(name)

    def _chosen(self, tenant: str | None, queue: str | None, after: str | None) -> AsyncIterator[Schedule]:
        sel = ScheduleSelector(
            tenant=None if tenant is None else check_name(tenant, "tenant", empty=True),
            queue=None if queue is None else check_name(queue, "queue"),
        )
        return self._all(sel, None if after is None else check_name(after, "after"))

    async def _all(self, sel: ScheduleSelector, after: str | None = None) -> AsyncIterator[Schedule]:
        ticks = await self._ticks()
        while page := await ticks.find(sel, after, _PAGE):
            for one in page:
                yield one
            after = page[-1].name
            await asyncio.sleep(0)


def _health(name: str, stale: str, read: Sequence[TickInfo], longer: float, complete: bool) -> ScheduleHealth:
    fired, skipped, missed = (
        sum(one.count for one in read if one.outcome == outcome.value)
        for outcome in (TickOutcome.FIRED, TickOutcome.SKIPPED, TickOutcome.MISSED)
    )
    completed, failed, cancelled = (
        sum(one.state == state.value for one in read)
        for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
    )
    ended = completed + failed + cancelled
    slow = [one for one in read if one.ran is not None and one.ran > longer]
    return ScheduleHealth(
        name=name,
        stale=stale,
        fired=fired,
        skipped=skipped,
        missed=missed,
        completed=completed,
        failed=failed,
        cancelled=cancelled,
        coverage=(fired - cancelled) / (fired + missed) if fired + missed else None,
        failure_rate=failed / ended if ended else None,
        slow=nlargest(_SLOWEST, slow, key=lambda one: one.ran or 0.0),
        complete=complete,
    )


async def _first(limit: int, schedules: AsyncIterator[Schedule]) -> AsyncIterator[Schedule]:
    """The first of them, and not one more is read."""
    left = limit
    async for one in schedules:
        yield one
        left -= 1
        if not left:
            return


def slots(definition: Definition, slot: int | None, last: int | None = None) -> Iterator[int]:
    """From this one on."""
    while slot is not None and (last is None or slot <= last):
        yield slot
        slot = definition.following(slot)
