"""Schedules on a store: made, changed, paused, looked at, made up for."""

from __future__ import annotations

from binascii import crc32
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from headrace.client import Owner
from headrace.core.names import check_name
from headrace.core.planning import Definition, look_at, make_plan, run_at, tick, unpack
from headrace.core.rules import EveryRule
from headrace.core.stretches import Stretch, split
from headrace.durations import micros
from headrace.errors import ConfigError, ScheduleNotFound, Unavailable
from headrace.instants import from_datetime, to_datetime
from headrace.protocol import Backend, TickStore
from headrace.records import Cancel, JobId, Row, Selector
from headrace.schedule import (
    Cron,
    Every,
    ScheduleInfo,
    TickInfo,
    changed,
    check_job,
    define,
    schedule_info,
    spec_of,
    template_of,
    tick_info,
)
from headrace.shown import shown
from headrace.ticks import BUCKETS, Drop, Look, Overlap, Plan, Save, Schedule, ScheduleSelector, Tick, TickOutcome
from headrace.types import JobState

_TRIES = 20
"""How often a change is made anew that another one came before."""
_MOST_PLANS = 10_000
"""Until a schedule has caught up; each deals with many slots."""
_PAGE = 100
_LONG_PAGE = 1_000
_MOST_BACKFILLED = 100_000


class Schedules:
    """The schedules of a store. Workers plan them: nothing fires while none runs, and what then was missed is made up
    for as each schedule says.

    >>> import asyncio
    >>> from headrace import App, Every
    >>> app = App("memory://")
    >>> @app.task
    ... def ping(text: str) -> None: ...
    >>> async def main() -> None:
    ...     async with app:
    ...         await app.schedules.put(Every("30s", ping.job("hello"), name="greet", jitter=0))
    ...         await app.schedules.update("greet", every="1m")
    ...         await app.schedules.disable("greet")
    ...         for schedule in await app.schedules.list():
    ...             print(schedule.name, schedule.rule, schedule.enabled)
    >>> asyncio.run(main())
    greet every 1m False
    """

    def __init__(self, owner: Owner, paced: Collection[str] = ()) -> None:
        self._owner = owner
        self._paced = paced
        """Those whose planners ask how long it is until the next slot."""

    # -- making and changing

    async def put(self, spec: Every | Cron) -> ScheduleInfo:
        """Make a schedule, or give the one of that name a new definition. What is the same stays as it is: how far it
        is planned, its runs, its phase, and whether it is enabled."""
        if not isinstance(spec, Every | Cron):
            raise ConfigError(f"expected Every(…) or Cron(…), got {shown(spec)}")
        row = self._owner.client.packer.pack(check_job(spec.job))
        name = check_name(row.task if spec.name is None else spec.name, "name")
        ticks = await self._ticks()
        for _ in range(_TRIES):
            now, known = await self._caught_up(ticks, name)
            wanted = self._wanted(spec, row, name, known, now)
            if known is not None and replace(wanted, look_at=known.look_at) == known:
                return self._info(known)
            if await self._save(ticks, wanted, known, now):
                return await self.get(name)
        raise self._contended(name)

    def _wanted(self, spec: Every | Cron, row: Row, name: str, known: Schedule | None, now: int) -> Schedule:
        if known is None:
            definition = define(spec, template_of(row), now)
            schedule = Schedule(
                name=name,
                uid=self._owner.client.packer.new_id(),
                queue=row.queue,
                definition=b"",
                tenant=row.tenant,
                bucket=crc32(name.encode()) % BUCKETS,
            )
            slot = definition.first(now)
        else:
            before, schedule = unpack(known.definition), known
            definition = define(spec, template_of(row), _anchor(before, spec, known, now))
            slot = self._next_slot(before, definition, known, now)
        return replace(
            schedule, queue=row.queue, tenant=row.tenant, rank=spec.rank, **self._planned(schedule, definition, slot)
        )

    def _next_slot(self, before: Definition, definition: Definition, known: Schedule, now: int) -> int | None:
        """Where a changed schedule goes on: where it stands, unless it has other slots now."""

        def same(*what: str) -> bool:
            return all(getattr(before, one) == getattr(definition, one) for one in what)

        if not same("rule", "start") or (known.slot is None and not same("end", "max_runs")):
            return definition.first(max(now, known.last_slot or now))
        return None if known.slot is None else definition.following(known.slot - 1)

    def _planned(self, schedule: Schedule, definition: Definition, slot: int | None) -> dict[str, Any]:
        when = look_at(schedule, definition, slot, self._ahead)
        return {"definition": definition.pack(), "slot": slot, "look_at": when}

    async def update(self, name: str, **changes: Any) -> ScheduleInfo:
        """Change single things of a schedule: ``every`` or ``cron`` and ``tz``, or any option of ``Every`` and
        ``Cron`` but its name. Slots that are planned already stay; an interval keeps its phase."""
        ticks = await self._ticks()
        for _ in range(_TRIES):
            now, known = await self._known_and_caught_up(ticks, name)
            before = unpack(known.definition)
            spec = changed(spec_of(before, known.rank), changes)
            definition = define(spec, before.template, _anchor(before, spec, known, now))
            slot = self._next_slot(before, definition, known, now)
            wanted = replace(known, rank=spec.rank, **self._planned(known, definition, slot))
            if await self._save(ticks, wanted, known, now):
                return await self.get(name)
        raise self._contended(name)

    async def enable(self, name: str) -> ScheduleInfo:
        """Fire again, from the next slot on: what came while it was disabled is not made up for."""
        ticks = await self._ticks()
        for _ in range(_TRIES):
            now = (await ticks.due(Look(1), self._stamp())).now
            known = await self._known(ticks, name)
            if known.enabled:
                return self._info(known)
            definition = unpack(known.definition)
            slot = definition.first(max(now, known.last_slot or now))
            wanted = replace(known, enabled=True, **self._planned(known, definition, slot))
            if await self._save(ticks, wanted, known, now):
                return await self.get(name)
        raise self._contended(name)

    async def disable(self, name: str, *, cancel_pending: bool = False) -> ScheduleInfo:
        """Fire no more. Jobs of slots that are planned already still run, unless ``cancel_pending``: those that have
        not started are cancelled."""
        ticks = await self._ticks()
        for _ in range(_TRIES):
            _, known = await self._known_and_caught_up(ticks, name)
            if await self._stop(ticks, known):
                if cancel_pending:
                    await self._cancel_pending(ticks, known.uid)
                return await self.get(name)
        raise self._contended(name)

    async def _stop(self, ticks: TickStore, known: Schedule) -> bool:
        if not known.enabled:
            return True
        [saved] = await ticks.save([Save(replace(known, enabled=False), known.version)], self._stamp())
        return saved

    async def delete(self, name: str) -> None:
        """The schedule goes, and jobs of its slots that have not started are cancelled. Raises ``ScheduleNotFound``."""
        ticks = await self._ticks()
        for _ in range(_TRIES):
            known = await self._known(ticks, name)
            if await self._drop(ticks, known):
                return
        raise self._contended(name)

    async def delete_tenant(self, tenant: str) -> int:
        """All schedules of a tenant go, as by ``delete``; how many there were."""
        check_name(tenant, "tenant")
        ticks = await self._ticks()
        count = 0
        for _ in range(_TRIES):
            left = [one async for one in self._all(ticks, ScheduleSelector(tenant=tenant))]
            if not left:
                return count
            for known in left:
                count += await self._drop(ticks, known)
        raise self._contended(f"of tenant {tenant}")

    async def _drop(self, ticks: TickStore, known: Schedule) -> bool:
        """Step by step, so that whoever is cut short can begin again: nothing new, nothing that waits, nothing."""
        if not await self._stop(ticks, known):
            return False
        await self._cancel_pending(ticks, known.uid)
        [dropped] = await ticks.save([Drop(known.name, known.version + known.enabled)], self._stamp())
        return dropped

    async def _cancel_pending(self, ticks: TickStore, uid: bytes) -> None:
        """Jobs that wait, of all slots that are on the ledger."""
        before: int | None = None
        waiting = frozenset((JobState.AVAILABLE,))
        while page := await ticks.history(uid, before, _LONG_PAGE):
            before = page[-1].slot
            if ids := [one.job for one in page if one.job is not None]:
                await self._owner.client.alter(Selector(ids=ids, states=waiting), Cancel("schedule stopped"))

    # -- looking

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises ``ScheduleNotFound``."""
        known = await self._known(await self._ticks(), name)
        return self._info(known)

    async def list(
        self, *, tenant: str | None = None, queue: str | None = None, after: str | None = None, limit: int = 1_000
    ) -> Sequence[ScheduleInfo]:
        """Schedules in the order of their names: all, or those of a tenant (empty: of none), or of a queue; from the
        name ``after`` on, which is left out, as the last one of a page is."""
        sel = ScheduleSelector(
            tenant=None if tenant is None else check_name(tenant, "tenant", empty=True),
            queue=None if queue is None else check_name(queue, "queue"),
        )
        above = None if after is None else check_name(after, "after")
        _number(limit, "limit")
        ticks = await self._ticks()
        found = []
        async for one in self._all(ticks, sel, above):
            found.append(self._info(one))
            if len(found) == limit:
                break
        return found

    async def next(self, name: str, count: int = 5) -> Sequence[datetime]:
        """The next instants at which its jobs will be due, with jitter, those that are planned already included."""
        _number(count, "count")
        ticks = await self._ticks()
        now = (await ticks.due(Look(1), self._stamp())).now
        known = await self._known(ticks, name)
        definition = unpack(known.definition)
        ahead = [one for one in await ticks.history(known.uid, None, _PAGE) if one.run_at > now]
        states = await self._states(ahead)
        planned = [one.run_at for one in ahead if states.get(one.job) == JobState.AVAILABLE]
        left = count if definition.max_runs is None else min(count, max(0, definition.max_runs - known.runs))
        slots = islice(_slots(definition, known.slot), left) if known.enabled else ()
        coming = sorted(planned) + [run_at(known.uid, slot, definition) for slot in slots]
        return [to_datetime(instant) for instant in coming[:count]]

    async def history(self, name: str, limit: int = 20, *, before: datetime | None = None) -> Sequence[TickInfo]:
        """What became of its slots, the latest first; of those before an instant, as of the last one of a page."""
        _number(limit, "limit")
        earlier = None if before is None else _aware(before, "before")
        ticks = await self._ticks()
        known = await self._known(ticks, name)
        page = await ticks.history(known.uid, earlier, limit)
        states = await self._states(page)
        return [tick_info(one, one.state or states.get(one.job, "")) for one in page]

    async def _states(self, page: Sequence[Tick]) -> dict[JobId | None, str]:
        """Of jobs of which nothing is noted."""
        backend = await self._owner.client.backend()
        unknown = [one.job for one in page if one.job is not None and not one.state]
        records = await backend.fetch(unknown, at=self._stamp()) if unknown else []
        return {record.id: record.state.value for record in records if record is not None}

    # -- out of turn

    async def run(self, name: str) -> UUID:
        """Run its job once, now, beside its slots and whether or not one of them still runs; the id of that job."""
        ticks = await self._ticks()
        for later in range(_TRIES):
            now = (await ticks.due(Look(1), self._stamp())).now
            known = await self._known(ticks, name)
            definition = replace(unpack(known.definition), overlap=Overlap.ALLOW)
            slot = now + later
            if definition.following(slot - 1) == slot:
                continue  # it is one of its own, which has a job to come
            extra = tick(known, definition, slot, now, now)
            [done] = await ticks.plan([Plan(known.name, known.uid, None, [extra])], self._stamp())
            if done and done[0] is not None and extra.row is not None:
                return UUID(bytes=extra.row.id)
        raise self._contended(name)

    async def backfill(
        self, name: str, since: datetime, until: datetime | None = None, *, dry_run: bool = False
    ) -> int:
        """Fire the slots from ``since`` on that did not, up to ``until`` or now; how many that were. Their jobs are due
        at once, in the order of their slots, however many still run. Calling it again fires none twice. ``dry_run``
        only counts them."""
        first, end = _aware(since, "since"), None if until is None else _aware(until, "until")
        if end is not None and end < first:
            raise ConfigError(f"until: expected an instant after since, got {shown(until)} before {shown(since)}")
        ticks = await self._ticks()
        now, known = await self._known_and_caught_up(ticks, name)
        self._check_reach(known, first, now)
        definition = replace(unpack(known.definition), overlap=Overlap.ALLOW)
        last = now if end is None else min(now, end)
        every = list(islice(_slots(definition, definition.first(first - 1), last), _MOST_BACKFILLED + 1))
        if len(every) > _MOST_BACKFILLED:
            raise ConfigError(f"expected at most {_MOST_BACKFILLED:,} slots at once, got more; name a shorter time")
        fired, missed = await self._dealt_with(ticks, known.uid, first, last)
        most = None if definition.max_runs is None else max(0, definition.max_runs - known.runs)
        slots = [slot for slot in every if slot not in fired][:most]
        if dry_run:
            return len(slots)
        count = 0
        for start in range(0, len(slots), _PAGE):
            page = slots[start : start + _PAGE]
            made_up = [tick(known, definition, slot, slot, now) for slot in page]
            missed, left = split(missed, page, definition)
            plan = Plan(name, known.uid, None, sorted([*made_up, *left], key=lambda one: one.slot))
            [outcomes] = await ticks.plan([plan], self._stamp())
            if outcomes is None:
                raise ScheduleNotFound(f"schedule {shown(name)} went while it was made up for")
            count += sum(outcome is TickOutcome.FIRED for outcome in outcomes)
        return count

    def _check_reach(self, known: Schedule, first: int, now: int) -> None:
        """What is not on the ledger any more could fire once more."""
        oldest = now - micros(self._owner.client.settings.retention.ticks.age)
        if max(first, known.created_at) < oldest:
            reach = to_datetime(oldest).isoformat(timespec="seconds")
            raise ConfigError(f"since: expected an instant after {reach}: what fired before is kept no longer")

    async def _dealt_with(
        self, ticks: TickStore, uid: bytes, first: int, last: int
    ) -> tuple[set[int], Sequence[Stretch]]:
        """Slots that have fired, and stretches of those that were missed, between two instants."""
        fired: set[int] = set()
        missed = []
        before = last + 1
        while page := await ticks.history(uid, before, _PAGE):
            for one in page:
                if one.outcome is TickOutcome.FIRED:
                    fired.add(one.slot)
                elif one.count > 1:
                    missed.append(Stretch(one.slot, one.count))
                if one.slot < first:
                    return fired, missed
            before = page[-1].slot
        return fired, missed

    # -- within

    def _info(self, known: Schedule) -> ScheduleInfo:
        return schedule_info(known, unpack(known.definition), self._owner.client.packer.envelope)

    @property
    def _ahead(self) -> int:
        return micros(self._owner.client.settings.planner.ahead)

    def _stamp(self) -> int | None:
        return self._owner.client.clock.stamp()

    async def _ticks(self) -> TickStore:
        backend: Backend = await self._owner.client.backend()
        if backend.ticks is None:
            raise ConfigError("this store keeps no schedules; SQLite, PostgreSQL and Valkey do")
        return backend.ticks

    async def _caught_up(self, ticks: TickStore, name: str) -> tuple[int, Schedule | None]:
        """The store's clock, and a schedule of which no slot is overdue: what it was until now decides about those."""
        for _ in range(_MOST_PLANS):
            now = (await ticks.due(Look(1), self._stamp())).now
            known = await self._find(ticks, name)
            if known is None or not known.enabled or known.look_at is None or known.look_at > now:
                return now, known
            plan = make_plan(known, unpack(known.definition), now, self._ahead)
            if not plan.ticks or name in self._paced:
                return now, known
            await ticks.plan([plan], self._stamp())
        raise self._contended(name)

    async def _known_and_caught_up(self, ticks: TickStore, name: str) -> tuple[int, Schedule]:
        now, known = await self._caught_up(ticks, name)
        return now, await self._known(ticks, name) if known is None else known

    async def _find(self, ticks: TickStore, name: str) -> Schedule | None:
        found = await ticks.find(ScheduleSelector(names=[check_name(name, "name")]))
        return found[0] if found else None

    async def _known(self, ticks: TickStore, name: str) -> Schedule:
        known = await self._find(ticks, name)
        if known is None:
            raise ScheduleNotFound(f"no schedule {shown(name)}: it never was, or has been deleted")
        return known

    async def _all(self, ticks: TickStore, sel: ScheduleSelector, after: str | None = None) -> AsyncIterator[Schedule]:
        while page := await ticks.find(sel, after, _PAGE):
            for one in page:
                yield one
            after = page[-1].name

    async def _save(self, ticks: TickStore, wanted: Schedule, known: Schedule | None, now: int) -> bool:
        """Save, and plan at once what no planner may be awake in time for."""
        expect = 0 if known is None else known.version
        [saved] = await ticks.save([Save(wanted, expect)], self._stamp())
        due = wanted.enabled and wanted.look_at is not None and wanted.look_at <= now
        if saved and due and wanted.name not in self._paced:
            stored = replace(wanted, version=expect + 1)
            await ticks.plan([make_plan(stored, unpack(stored.definition), now, self._ahead)], self._stamp())
        return saved

    def _contended(self, name: str) -> Unavailable:
        return Unavailable(f"schedule {shown(name)} is being changed over and over by others; try again")


def _anchor(before: Definition, spec: Every | Cron, known: Schedule, now: int) -> int:
    """From where an interval is counted that has no start: as before, if it is the same; else from the last slot."""
    rule = before.rule
    if not isinstance(rule, EveryRule):
        return known.last_slot or now
    same = isinstance(spec, Every) and micros(spec.interval, "interval") == rule.interval
    return rule.anchor if same else known.last_slot or rule.anchor


def _slots(definition: Definition, slot: int | None, last: int | None = None) -> Iterator[int]:
    """From this one on."""
    while slot is not None and (last is None or slot <= last):
        yield slot
        slot = definition.following(slot)


def _aware(given: object, what: str) -> int:
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise ConfigError(f"{what}: expected a datetime with a time zone, got {shown(given)}")
    return from_datetime(given)


def _number(given: object, what: str) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"{what}: expected a whole number of at least 1, got {shown(given)}")
