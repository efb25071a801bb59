"""Schedules in a store: create, change, disable, run, backfill."""

from __future__ import annotations

import logging
from binascii import crc32
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Unpack
from uuid import UUID

from msgspec.structs import replace

from headrace.core.durations import micros
from headrace.core.names import check_name
from headrace.errors import ConfigError, ScheduleNotFound, Unavailable
from headrace.schedules.backfill import Stretch, split
from headrace.schedules.calendar import EveryRule
from headrace.schedules.plan import Definition, look_at, make_plan, tick, unpack
from headrace.schedules.planner import tell_ticks, warn_if_late
from headrace.schedules.queries import ScheduleQueries, slots
from headrace.schedules.spec import (
    Cron,
    Every,
    ScheduleChanges,
    ScheduleInfo,
    aware,
    changed,
    check_job,
    define,
    spec_of,
    template_of,
)
from headrace.seam.instants import to_datetime
from headrace.seam.records import Cancel, Row, Selector
from headrace.seam.ticks import BUCKETS, Drop, Overlap, Plan, Save, Schedule, ScheduleSelector, TickNote, TickOutcome
from headrace.text import shown
from headrace.types import JobState

log = logging.getLogger("headrace")

_TRIES = 20
"""How often a change is repeated if another one came first."""
_MOST_PLANS = 10_000
"""Plans that one call may need until a schedule has caught up; each deals with many slots."""
_PAGE = 100
_LONG_PAGE = 1_000
_MANY = 500
"""Schedules that are put in one step."""
_MOST_BACKFILLED = 100_000


class Schedules(ScheduleQueries):
    """The schedules of a store. Workers plan them: nothing fires while no worker runs, and ``misfire`` says what
    happens to slots that were missed.

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

    # -- making and changing

    async def put(self, spec: Every | Cron) -> ScheduleInfo:
        """Create a schedule, or give the one of that name a new definition. The rest stays: how far it is planned, its
        runs, its phase, and whether it is enabled."""
        name, row = self._checked(spec)
        for _ in range(_TRIES):
            now, known = await self._caught_up(name)
            wanted = self._wanted(spec, row, name, known, now)
            if known is not None and replace(wanted, look_at=known.look_at) == known:
                return self._info(known)
            if await self._save(wanted, known, now):
                return await self.get(name)
        raise self._contended(name)

    async def put_many(self, specs: Iterable[Every | Cron]) -> Sequence[ScheduleInfo]:
        """Put many schedules, as ``put`` does each, in a few trips for five hundred of them. All are checked before the
        first is stored. Returns them in order."""
        named = [(spec, *self._checked(spec)) for spec in specs]
        twice = next((name for name, times in Counter(name for _, name, _ in named).items() if times > 1), None)
        if twice is not None:
            raise ConfigError(f"expected each name once, got {shown(twice)} several times")
        found: list[ScheduleInfo] = []
        for start in range(0, len(named), _MANY):
            page = named[start : start + _MANY]
            done = await self._put_page(page)
            for spec, name, _ in page:
                if name not in done:  # it is overdue, or others change it at the same time
                    await self.put(spec)
            names = [name for _, name, _ in page]
            stored = await self._stored(names)
            found += [self._info(stored[name]) if name in stored else await self.get(name) for name in names]
        return found

    async def _put_page(self, page: Sequence[tuple[Every | Cron, str, Row]]) -> set[str]:
        """Put schedules in one step, without those that must catch up first. Returns what is as it should be."""
        now = await self._now()
        names = [name for _, name, _ in page]
        stored = await self._stored(names)
        ticks = await self._ticks()
        done: set[str] = set()
        saves: list[Save] = []
        for spec, name, row in page:
            known = stored.get(name)
            if known is not None and known.enabled and known.look_at is not None and known.look_at <= now:
                continue
            wanted = self._wanted(spec, row, name, known, now)
            if known is not None and replace(wanted, look_at=known.look_at) == known:
                done.add(name)
            else:
                saves.append(Save(wanted, 0 if known is None else known.version))
        answers = await ticks.save(saves, self._stamp()) if saves else []
        saved = [save for save, was_saved in zip(saves, answers, strict=True) if was_saved]
        for save in saved:
            log.info("schedule %s: %s", shown(save.schedule.name), "changed" if save.expect else "made")
        plans = [plan for save in saved if (plan := self._first_plan(save, now)) is not None]
        for plan, outcomes in zip(plans, await ticks.plan(plans, self._stamp()) if plans else [], strict=True):
            tell_ticks(self._owner.client.observers, plan, outcomes, now)
        return done | {save.schedule.name for save in saved}

    def _first_plan(self, save: Save, now: int) -> Plan | None:
        """What a schedule that was saved does before a planner may wake, if anything."""
        wanted = save.schedule
        definition = unpack(wanted.definition)
        due = wanted.enabled and wanted.look_at is not None and wanted.look_at <= now
        if not due or definition.dynamic_interval:
            return None
        return make_plan(replace(wanted, version=save.expect + 1), definition, now, self._ahead)

    def _checked(self, spec: Every | Cron) -> tuple[str, Row]:
        """The name of a schedule and the row of its jobs. Raises before anything is stored."""
        if not isinstance(spec, Every | Cron):
            raise ConfigError(f"expected Every(…) or Cron(…), got {shown(spec)}")
        row = self._owner.client.packer.pack_template(check_job(spec.job))
        return check_name(row.task if spec.name is None else spec.name, "name"), row

    def _wanted(self, spec: Every | Cron, row: Row, name: str, known: Schedule | None, now: int) -> Schedule:
        dynamic = name in self._dynamic
        if known is None:
            definition = replace(define(spec, template_of(row), now), dynamic_interval=dynamic)
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
            definition = replace(definition, dynamic_interval=dynamic or before.dynamic_interval)
            slot = self._next_slot(before, definition, known, now)
        return replace(
            schedule,
            queue=row.queue,
            tenant=row.tenant,
            plan_priority=spec.plan_priority,
            **self._planned(schedule, definition, slot),
        )

    def _next_slot(self, before: Definition, definition: Definition, known: Schedule, now: int) -> int | None:
        """Where a changed schedule continues: where it stands, unless its slots are different now."""

        def same(*what: str) -> bool:
            return all(getattr(before, one) == getattr(definition, one) for one in what)

        if not same("rule", "start") or (known.slot is None and not same("end", "max_runs")):
            return definition.first(max(now, known.last_slot or now))
        if known.slot is None or definition.dynamic_interval:
            return None if known.slot is None or known.slot > (definition.end or known.slot) else known.slot
        return definition.following(known.slot - 1)

    def _planned(self, schedule: Schedule, definition: Definition, slot: int | None) -> dict[str, Any]:
        when = look_at(schedule, definition, slot, self._ahead)
        return {"definition": definition.pack(), "slot": slot, "look_at": when}

    async def update(self, name: str, **changes: Unpack[ScheduleChanges]) -> ScheduleInfo:
        """Change parts of a schedule: ``every``, or ``cron`` and ``tz``, or any option of ``Every`` and ``Cron`` except
        the name. Slots that are planned already stay; an interval keeps its phase. ``dynamic_interval=False``: no
        function sets its interval any more."""
        dynamic = self._wanted_dynamic(name, changes)
        for _ in range(_TRIES):
            now, known = await self._known_and_caught_up(name)
            before = unpack(known.definition)
            spec = changed(spec_of(before, known.plan_priority), changes)
            definition = define(spec, before.template, _anchor(before, spec, known, now))
            definition = replace(definition, dynamic_interval=before.dynamic_interval if dynamic is None else dynamic)
            slot = self._next_slot(before, definition, known, now)
            wanted = replace(known, plan_priority=spec.plan_priority, **self._planned(known, definition, slot))
            if await self._save(wanted, known, now):
                return await self.get(name)
        raise self._contended(name)

    def _wanted_dynamic(self, name: str, changes: ScheduleChanges) -> bool | None:
        """Whether a function sets the interval from now on; None: as before. Raises ``ConfigError``."""
        dynamic = changes.pop("dynamic_interval", None)
        if dynamic is not None and not isinstance(dynamic, bool):
            raise ConfigError(f"dynamic_interval: expected True or False, got {shown(dynamic)}")
        if name not in self._dynamic:
            return dynamic
        if dynamic is False:
            raise ConfigError(f"dynamic_interval: this app has a function for schedule {shown(name)}; remove it first")
        return True

    async def enable(self, name: str) -> ScheduleInfo:
        """Fire again, from the next slot on. Slots that came while it was disabled do not fire."""
        for _ in range(_TRIES):
            now = await self._now()
            known = await self._known(name)
            if known.enabled:
                return self._info(known)
            definition = unpack(known.definition)
            slot = definition.first(max(now, known.last_slot or now))
            wanted = replace(known, enabled=True, **self._planned(known, definition, slot))
            if await self._save(wanted, known, now):
                return await self.get(name)
        raise self._contended(name)

    async def disable(self, name: str, *, cancel_pending: bool = False) -> ScheduleInfo:
        """Stop firing. Jobs of slots that are planned already still run; with ``cancel_pending``, those that have not
        started are cancelled. Their slots count as fired and do not fire again."""
        for _ in range(_TRIES):
            _, known = await self._known_and_caught_up(name)
            if await self._stop(known):
                if cancel_pending:
                    await self._cancel_pending(known.uid)
                return await self.get(name)
        raise self._contended(name)

    async def _stop(self, known: Schedule) -> bool:
        if not known.enabled:
            return True
        stopped = await self._made(Save(replace(known, enabled=False), known.version))
        if stopped:
            log.info("schedule %s: disabled", shown(known.name))
        return stopped

    async def delete(self, name: str) -> None:
        """Delete the schedule, and cancel jobs of its slots that have not started. Raises ``ScheduleNotFound``."""
        for _ in range(_TRIES):
            known = await self._known(name)
            if await self._drop(known):
                return
        raise self._contended(name)

    async def delete_tenant(self, tenant: str) -> int:
        """Delete all schedules of a tenant, as ``delete`` does; returns how many there were."""
        check_name(tenant, "tenant")
        count = 0
        for _ in range(_TRIES):
            left = [one async for one in self._all(ScheduleSelector(tenant=tenant))]
            if not left:
                return count
            for known in left:
                count += await self._drop(known)
        raise self._contended(f"of tenant {tenant}")

    async def _drop(self, known: Schedule) -> bool:
        """In steps that can be repeated after an interruption: disable it, cancel waiting jobs, remove it."""
        if not await self._stop(known):
            return False
        await self._cancel_pending(known.uid)
        dropped = await self._made(Drop(known.name, known.version + known.enabled))
        if dropped:
            log.info("schedule %s: removed", shown(known.name))
        return dropped

    async def _cancel_pending(self, uid: bytes) -> None:
        """Cancel the waiting jobs of all slots in its history."""
        before: int | None = None
        waiting = frozenset((JobState.AVAILABLE,))
        while page := await self._history(uid, before, _LONG_PAGE):
            before = page[-1].slot
            slots = {one.job: one.slot for one in page if one.job is not None}
            if not slots:
                continue
            sel = Selector(ids=list(slots), states=waiting)
            altered = await self._owner.client.alter(sel, Cancel("schedule stopped"))
            gone = [slots[one.id] for one in altered if one.changed and one.after is JobState.CANCELLED]
            if gone:
                notes = [TickNote(uid, slot, JobState.CANCELLED.value, 0, 0) for slot in gone]
                await (await self._ticks()).note(notes, self._stamp())

    # -- out of turn

    async def run(self, name: str) -> UUID:
        """Run its job once, now, in addition to its slots, even if one of them still runs (with ``overlap="queue"``:
        after that has ended). Returns the job's id."""
        for later in range(_TRIES):
            now = await self._now()
            known = await self._known(name)
            definition = replace(unpack(known.definition), overlap=Overlap.ALLOW)
            slot = now + later
            if definition.following(slot - 1) == slot:
                continue  # a slot of the schedule itself, which gets its own job
            extra = tick(known, definition, slot, now, now)
            done = await self._plan(Plan(known.name, known.uid, None, [extra]))
            if done and done[0] is not None and extra.row is not None:
                return UUID(bytes=extra.row.id)
        raise self._contended(name)

    async def backfill(
        self, name: str, since: datetime, until: datetime | None = None, *, dry_run: bool = False
    ) -> int:
        """Fire the slots from ``since`` up to ``until`` (or now) that did not fire; returns how many. Their jobs are
        due at once, in the order of their slots, however many still run. A second call fires none twice. ``dry_run``
        only counts them."""
        first, end = aware(since, "since"), None if until is None else aware(until, "until")
        if end is not None and end < first:
            raise ConfigError(f"until: expected an instant after since, got {until} before {since}")
        now, known = await self._known_and_caught_up(name)
        self._check_reach(known, first, now)
        definition = replace(unpack(known.definition), overlap=Overlap.ALLOW)
        last = now if end is None else min(now, end)
        every = list(islice(slots(definition, definition.first(first - 1), last), _MOST_BACKFILLED + 1))
        if len(every) > _MOST_BACKFILLED:
            raise ConfigError(f"expected at most {_MOST_BACKFILLED:,} slots at once, got more; name a shorter time")
        fired, missed = await self._dealt_with(known.uid, first, last)
        most = None if definition.max_runs is None else max(0, definition.max_runs - known.runs)
        left_out = [slot for slot in every if slot not in fired][:most]
        if dry_run:
            return len(left_out)
        count = 0
        for start in range(0, len(left_out), _PAGE):
            page = left_out[start : start + _PAGE]
            # Due now, in their order: a job of a backfill is not late.
            due = now - len(left_out) + start
            made_up = [tick(known, definition, slot, due + i, now) for i, slot in enumerate(page)]
            missed, left = split(missed, page, definition)
            plan = Plan(name, known.uid, None, sorted([*made_up, *left], key=lambda one: one.slot))
            outcomes = await self._plan(plan)
            if outcomes is None:
                raise ScheduleNotFound(f"schedule {shown(name)} was deleted during the backfill")
            count += sum(outcome is TickOutcome.FIRED for outcome in outcomes)
        return count

    def _check_reach(self, known: Schedule, first: int, now: int) -> None:
        """Slots that are no longer in the history could fire twice."""
        age = self._owner.client.settings.retention.ticks.age
        oldest = known.created_at if age is None else now - micros(age)
        if max(first, known.created_at) < oldest:
            reach = to_datetime(oldest).isoformat(timespec="seconds")
            raise ConfigError(f"since: expected an instant after {reach}: its history does not reach back further")

    async def _dealt_with(self, uid: bytes, first: int, last: int) -> tuple[set[int], Sequence[Stretch]]:
        """Slots that have fired, and stretches of those that were missed, between two instants."""
        fired: set[int] = set()
        missed = []
        before = last + 1
        while page := await self._history(uid, before, _PAGE):
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

    @property
    def _ahead(self) -> int:
        return micros(self._owner.client.settings.planner.ahead)

    async def _caught_up(self, name: str) -> tuple[int, Schedule | None]:
        """The store's clock, and the schedule without overdue slots: its old definition decides about those."""
        for _ in range(_MOST_PLANS):
            now = await self._now()
            known = await self._find(name)
            if known is None or not known.enabled or known.look_at is None or known.look_at > now:
                return now, known
            definition = unpack(known.definition)
            if definition.dynamic_interval or name in self._dynamic:
                return now, known
            plan = make_plan(known, definition, now, self._ahead)
            if not plan.ticks:
                return now, known
            outcomes = await self._plan(plan, now)
            warn_if_late(self._owner.client.observers, known, plan, outcomes or (), now)
        raise self._contended(name)

    async def _plan(self, plan: Plan, now: int | None = None) -> Sequence[TickOutcome | None] | None:
        """Have the store carry out a plan, and report what it did; None: nothing."""
        [outcomes] = await (await self._ticks()).plan([plan], self._stamp())
        tell_ticks(self._owner.client.observers, plan, outcomes, now)
        return outcomes

    async def _known_and_caught_up(self, name: str) -> tuple[int, Schedule]:
        now, known = await self._caught_up(name)
        return now, await self._known(name) if known is None else known

    async def _save(self, wanted: Schedule, known: Schedule | None, now: int) -> bool:
        """Save, and plan at once what is due before a planner may wake."""
        expect = 0 if known is None else known.version
        saved = await self._made(Save(wanted, expect))
        if saved:
            what = "made" if known is None else "changed" if known.enabled else "enabled"
            log.info("schedule %s: %s", shown(wanted.name), what)
        plan = self._first_plan(Save(wanted, expect), now)
        if saved and plan is not None:
            await self._plan(plan, now)
        return saved

    async def _made(self, change: Save | Drop) -> bool:
        """Make a change, unless the schedule has another version by now. Returns whether it was made."""
        [made] = await (await self._ticks()).save([change], self._stamp())
        return made

    def _contended(self, name: str) -> Unavailable:
        return Unavailable(f"others keep changing schedule {shown(name)}; try again")


def _anchor(before: Definition, spec: Every | Cron, known: Schedule, now: int) -> int:
    """From where an interval without a start is counted: as before, if it is the same; else from the last slot."""
    rule = before.rule
    if not isinstance(rule, EveryRule):
        return known.last_slot or now
    same = isinstance(spec, Every) and micros(spec.interval, "interval") == rule.interval
    return rule.anchor if same else known.last_slot or rule.anchor
