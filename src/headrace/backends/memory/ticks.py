"""Schedules and the ledger of their ticks, in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import nsmallest

from msgspec.structs import replace

from headrace.backends.memory.capability import Capability
from headrace.backends.memory.store import MemoryStore
from headrace.seam import ticks as t
from headrace.seam.records import Cancel, Row, Stamp


class MemoryTicks(Capability):
    """The operations of a :class:`~headrace.seam.protocol.TickStore`."""

    def __init__(
        self,
        store: MemoryStore,
        begin: Callable[[Stamp], int],
        insert: Callable[[Row, int], object],
        cancel: Callable[[bytes, Cancel, int], object],
    ) -> None:
        super().__init__(store, begin)
        self._insert = insert
        self._cancel = cancel

    async def save(self, batch: Sequence[t.Save | t.Drop], at: Stamp = None) -> list[bool]:
        with self._store.lock:
            now = self._begin(at)
            answers = [self._save(change, now) for change in batch]
            if any(answers):
                self._store.publish("schedules:all")
            return answers

    def _save(self, change: t.Save | t.Drop, now: int) -> bool:
        schedules = self._store.ledger.schedules
        name = change.name if isinstance(change, t.Drop) else change.schedule.name
        known = schedules.get(name)
        if change.expect != (0 if known is None else known.version):
            return False
        if isinstance(change, t.Drop):
            schedules.pop(name, None)
        else:
            made = now if known is None else known.created_at
            schedules[name] = replace(
                change.schedule, version=change.expect + 1, created_at=made, updated_at=now
            )  # fmt: skip
        return True

    async def find(self, sel: t.ScheduleSelector, after: str | None = None, limit: int = 100) -> list[t.Schedule]:
        with self._store.lock:
            known = self._store.ledger.schedules
            named = known.values() if sel.names is None else [known[n] for n in dict.fromkeys(sel.names) if n in known]
            found = (
                one
                for one in named
                if (after is None or one.name > after)
                and (sel.tenant is None or one.tenant == sel.tenant)
                and (sel.queue is None or one.queue == sel.queue)
            )
            return nsmallest(limit, found, key=lambda one: one.name)

    async def due(self, req: t.Look, at: Stamp = None) -> t.Looked:
        with self._store.lock:
            now = self._begin(at)
            waiting = [
                (one.look_at, one)
                for one in self._store.ledger.schedules.values()
                if one.enabled and one.look_at is not None and one.bucket % req.shares == req.share
            ]
            due = [one for look_at, one in waiting if look_at <= now]
            first = nsmallest(req.limit, due, key=lambda one: (one.plan_priority, one.look_at, one.name))
            coming = min((look_at for look_at, _ in waiting if look_at > now), default=None)
            short = len(first) < req.limit
            return t.Looked(now, first, coming - now if short and coming is not None else None)

    async def plan(self, batch: Sequence[t.Plan], at: Stamp = None) -> list[list[t.TickOutcome | None] | None]:
        with self._store.lock:
            now = self._begin(at)
            return [self._plan(plan, now) for plan in batch]

    def _plan(self, plan: t.Plan, now: int) -> list[t.TickOutcome | None] | None:
        ledger = self._store.ledger
        schedule = ledger.schedules.get(plan.name)
        if schedule is None or schedule.uid != plan.uid or plan.version not in (None, schedule.version):
            return None
        outcomes: list[t.TickOutcome | None] = []
        for tick in plan.ticks:
            outcome = self._tick(plan.uid, tick, schedule, now)
            outcomes.append(outcome)
            if outcome is t.TickOutcome.FIRED and tick.row is not None:
                schedule = replace(schedule, runs=schedule.runs + 1)
                if plan.version is not None:
                    schedule = replace(schedule, last_slot=tick.slot, last_job=tick.row.id)
        if plan.version is not None:
            schedule = replace(schedule, slot=plan.slot, look_at=plan.look_at)
        ledger.schedules[plan.name] = replace(schedule, version=schedule.version + 1)
        return outcomes

    def _tick(self, uid: bytes, tick: t.NewTick, schedule: t.Schedule, now: int) -> t.TickOutcome | None:
        ledger, row = self._store.ledger, tick.row
        known = ledger.ticks.get((uid, tick.slot))
        if known is not None:
            if known.outcome is t.TickOutcome.FIRED:
                return None
            ledger.remove((uid, tick.slot))
        outcome = t.TickOutcome.MISSED if row is None else t.TickOutcome.FIRED
        if row is not None and tick.overlap is not t.Overlap.ALLOW and schedule.last_job is not None:
            last = self._store.jobs.get(schedule.last_job)
            if last is not None and not last.state.terminal:
                if tick.overlap is t.Overlap.SKIP:
                    outcome = t.TickOutcome.SKIPPED
                else:
                    self._cancel(schedule.last_job, Cancel("superseded"), now)
        fired = row if outcome is t.TickOutcome.FIRED else None
        job = None if fired is None else fired.id
        ledger.add(
            uid,
            t.Tick(slot=tick.slot, run_at=tick.run_at, outcome=outcome, planned_at=now, count=tick.count, job=job),
        )
        if fired is not None:
            self._insert(fired, now)
            self._store.publish(f"queue:{fired.queue}")
        return outcome

    async def history(self, uid: bytes, before: int | None = None, limit: int = 100) -> list[t.Tick]:
        with self._store.lock:
            ledger = self._store.ledger
            slots = ledger.slots.get(uid, [])
            end = len(slots) if before is None else bisect_left(slots, before)
            return [ledger.ticks[uid, slot] for slot in reversed(slots[max(0, end - limit) : end])]

    async def note(self, batch: Sequence[t.TickNote], at: Stamp = None) -> None:
        with self._store.lock:
            ticks = self._store.ledger.ticks
            for note in batch:
                if (tick := ticks.get((note.uid, note.slot))) is not None:
                    ticks[note.uid, note.slot] = replace(tick, state=note.state, waited=note.waited, ran=note.ran)
