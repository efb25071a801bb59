"""Schedules: one job per slot, on the grid, none left out, as the policies say (I10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from headrace.schedules.plan import Misfire, unpack
from headrace.seam.records import Cancel, JobId, Row, SweepClause, Swept
from headrace.seam.ticks import (
    Drop,
    Look,
    Looked,
    NewTick,
    Overlap,
    Plan,
    Save,
    Schedule,
    ScheduleSelector,
    Tick,
    TickNote,
    TickOutcome,
)
from headrace.testing.sim.ledger import LIVE, Ledger
from headrace.testing.sim.rules.alter import take_effect
from headrace.testing.sim.rules.grid import Grid

_REST = 15_000_000
"""How long after its time a slot may still be unplanned at rest, as nobody plans by then."""


def on_save(book: Ledger, batch: Sequence[Save | Drop], answers: Sequence[bool], now: int) -> None:
    """Schedules were made, changed or removed."""
    for change, done in zip(batch, answers, strict=True):
        name = change.name if isinstance(change, Drop) else change.schedule.name
        known = book.schedules.get(name)
        stored = 0 if known is None else known.version
        if done != (stored == change.expect):
            book.blame("I10", None, f"{name}: a change to version {change.expect} was answered {done}; it is {stored}")
        if not done:
            book.reach("schedule changed by another")
        elif isinstance(change, Drop):
            book.schedules.pop(name, None)
        else:
            made = now if known is None else known.created_at
            saved = replace(change.schedule, version=change.expect + 1, created_at=made, updated_at=now)
            _check_place(book, saved)
            book.schedules[name] = saved


def _check_place(book: Ledger, schedule: Schedule) -> None:
    if schedule.slot is not None and not Grid(unpack(schedule.definition)).on(schedule.slot):
        book.blame("I10", None, f"{schedule.name} goes on at {schedule.slot}, which is no slot of it")


def on_due(book: Ledger, req: Look, looked: Looked, now: int) -> None:
    """Somebody has asked what to look at."""
    waiting = [
        one
        for one in book.schedules.values()
        if one.enabled and one.look_at is not None and one.bucket % req.shares == req.share
    ]
    due = sorted((one.plan_priority, one.look_at or 0, one.name) for one in waiting if (one.look_at or 0) <= now)
    if [one.name for one in looked.schedules] != [name for _, _, name in due[: req.limit]]:
        book.blame("I10", None, f"{[one.name for one in looked.schedules]} must be looked at, which should be {due}")
    coming = min((one.look_at - now for one in waiting if one.look_at is not None and one.look_at > now), default=None)
    if len(looked.schedules) < req.limit and looked.next_in != coming:
        book.blame("I10", None, f"the next look is in {looked.next_in}, which should be {coming}")
    for one in looked.schedules:
        if one != book.schedules.get(one.name):
            book.blame("I10", None, f"{one.name} was shown as {one}, which should be {book.schedules.get(one.name)}")
        first, _ = book.looks.get((book.node, one.uid, one.version), (now, now))
        book.looks[book.node, one.uid, one.version] = first, now


def on_plan(book: Ledger, batch: Sequence[Plan], answers: Sequence[list[TickOutcome | None] | None], now: int) -> None:
    """Plans were answered."""
    if len(batch) != len(answers):
        book.blame("I16", None, f"{len(batch)} plans were sent and {len(answers)} answered")
    for plan, outcomes in zip(batch, answers, strict=False):
        known = book.schedules.get(plan.name)
        current = known is not None and known.uid == plan.uid and plan.version in (None, known.version)
        if outcomes is None:
            if current:
                book.blame("I10", None, f"{plan.name}: a plan for version {plan.version} was refused, which it has")
            else:
                book.reach("plan came too late")
            continue
        if not current:
            book.blame("I10", None, f"{plan.name}: a plan for version {plan.version} was carried out; it is {known}")
        if known is not None:
            _carry_out(book, known, plan, outcomes, now)


def _carry_out(
    book: Ledger, schedule: Schedule, plan: Plan, outcomes: Sequence[TickOutcome | None], now: int
) -> None:  # fmt: skip
    if plan.version is not None:
        _check_grid(book, schedule, plan)
        _check_policy(book, plan, Grid(unpack(schedule.definition)))
    elif plan.ticks:
        book.reach("slots fired out of turn")
    for tick, outcome in zip(plan.ticks, outcomes, strict=False):
        right = _right(book, schedule, tick)
        if outcome is not right:
            book.blame("I10", _id(tick), f"{plan.name}: slot {tick.slot} {outcome}, which should be {right}")
        if outcome is None:
            book.reach("slot had fired before")
            continue
        fired = tick.row if outcome is TickOutcome.FIRED else None
        if fired is not None:
            _fire(book, schedule, tick, fired, now)
            schedule = replace(schedule, runs=schedule.runs + 1)
            if plan.version is not None:
                schedule = replace(schedule, last_slot=tick.slot, last_job=fired.id)
        book.reach(f"slot {outcome}")
        book.ticks.pop((plan.uid, tick.slot), None)
        book.ticks[plan.uid, tick.slot] = Tick(
            slot=tick.slot,
            run_at=tick.run_at,
            outcome=outcome,
            planned_at=now,
            count=tick.count,
            job=None if fired is None else fired.id,
        )
    if plan.version is not None:
        schedule = replace(schedule, slot=plan.slot, look_at=plan.look_at)
    book.schedules[plan.name] = replace(schedule, version=schedule.version + 1)


def _right(book: Ledger, schedule: Schedule, tick: NewTick) -> TickOutcome | None:
    known = book.ticks.get((schedule.uid, tick.slot))
    if known is not None and known.outcome is TickOutcome.FIRED:
        return None
    if tick.row is None:
        return TickOutcome.MISSED
    last = None if schedule.last_job is None else book.jobs.get(schedule.last_job)
    alive = last is not None and last.state in LIVE
    return TickOutcome.SKIPPED if alive and tick.overlap is Overlap.SKIP else TickOutcome.FIRED


def _fire(book: Ledger, schedule: Schedule, tick: NewTick, row: Row, now: int) -> None:
    known = book.ticks.get((schedule.uid, tick.slot))
    if known is not None and known.outcome is TickOutcome.FIRED:
        book.blame("I10", row.id, f"{schedule.name}: slot {tick.slot} has fired a second time")
    if row.run_at != tick.run_at:
        book.blame("I10", row.id, f"the job is due at {row.run_at}, its tick at {tick.run_at}")
    last = None if schedule.last_job is None else book.jobs.get(schedule.last_job)
    if tick.overlap is Overlap.CANCEL and last is not None and last.state in LIVE:
        book.reach("job before cancelled")
        take_effect(book, Cancel("superseded"), last, now)
    if row.id in book.jobs or row.id in book.gone:
        book.blame("I10", row.id, f"{schedule.name}: the job of slot {tick.slot} is the one of another slot")
    else:
        book.add(row, now)


def _check_grid(book: Ledger, schedule: Schedule, plan: Plan) -> None:
    """What is planned goes on where the last plan ended, slot by slot."""
    grid = Grid(unpack(schedule.definition))
    stands, runs = schedule.slot, schedule.runs
    for tick in plan.ticks:
        if tick.slot != stands:
            book.blame("I10", _id(tick), f"{plan.name}: slot {tick.slot} was planned, which should be {stands}")
            return
        if abs(tick.run_at - tick.slot) > grid.spread(tick.slot):
            book.blame("I10", _id(tick), f"{plan.name}: a job of slot {tick.slot} is due at {tick.run_at}")
        stands = grid.step(stands, tick.count)
        runs += tick.row is not None
    most = grid.definition.max_runs
    if plan.slot != stands and not (plan.slot is None and most is not None and runs >= most):
        book.blame("I10", None, f"{plan.name} goes on at {plan.slot}, which should be {stands}")


def _check_policy(book: Ledger, plan: Plan, grid: Grid) -> None:
    """By when the planner had looked: what it called late was late, and what it fired was not, or was the last."""
    seen = book.looks.get((book.node, plan.uid, plan.version or 0))
    if seen is None:
        return
    first, last = (instant - grid.patience for instant in seen)
    for tick in plan.ticks:
        end = grid.step(tick.slot, tick.count - 1)
        if tick.row is None:
            book.reach("several slots missed" if tick.count > 1 else "one slot missed")
            if end is None or end - grid.spread(end) >= last:
                book.blame("I10", None, f"{plan.name}: {tick.count} slots from {tick.slot} missed, which were in time")
        elif tick.run_at < first:
            after = grid.step(tick.slot, 1)
            final = after is None or after + grid.spread(after) >= first
            if grid.definition.misfire is not Misfire.ONCE or not final:
                book.blame("I10", tick.row.id, f"{plan.name}: slot {tick.slot} fired {first - tick.run_at} µs too late")
            else:
                book.reach("late slot fired for all")


def on_find(
    book: Ledger, sel: ScheduleSelector, after: str | None, limit: int, found: Sequence[Schedule], now: int
) -> None:
    """Schedules were looked up."""
    right = [
        one
        for one in sorted(book.schedules.values(), key=lambda one: one.name)
        if (sel.names is None or one.name in sel.names)
        and (after is None or one.name > after)
        and (sel.tenant is None or one.tenant == sel.tenant)
        and (sel.queue is None or one.queue == sel.queue)
    ]
    if list(found) != right[:limit]:
        book.blame("I16", None, f"schedules were shown as {found}, which should be {right[:limit]}")


def on_history(
    book: Ledger, uid: bytes, before: int | None, limit: int, found: Sequence[Tick], now: int
) -> None:  # fmt: skip
    """The ledger was read."""
    slots = sorted((slot for one, slot in book.ticks if one == uid and (before is None or slot < before)), reverse=True)
    right = [book.ticks[uid, slot] for slot in slots[:limit]]
    if list(found) != right:
        book.blame("I10", None, f"ticks were shown as {found}, which should be {right}")


def on_note(book: Ledger, batch: Sequence[TickNote], answer: None, now: int) -> None:
    """Ends of jobs were noted."""
    for note in batch:
        tick = book.ticks.get((note.uid, note.slot))
        if tick is not None:
            book.reach("tick noted")
            book.ticks[note.uid, note.slot] = replace(tick, state=note.state, waited=note.waited, ran=note.ran)


def on_sweep_ticks(book: Ledger, clause: SweepClause, swept: Swept, now: int) -> None:
    """Ticks were swept."""
    doomed: list[tuple[bytes, int]] = []
    excess = 0 if clause.max_count is None else len(book.ticks) - clause.max_count
    for name, tick in book.ticks.items():
        old = clause.older_than is not None and tick.planned_at <= now - clause.older_than
        if old or len(doomed) < excess:
            doomed.append(name)
    if swept.removed != len(doomed[: clause.limit]):
        book.blame("I17", None, f"a sweep removed {swept.removed} ticks, which should be {len(doomed)}")
    for name in () if clause.dry_run else doomed[: clause.limit]:
        del book.ticks[name]


def on_seen(book: Ledger, schedules: Sequence[Schedule], ticks: Sequence[tuple[bytes, Tick]]) -> None:
    """The observer has read all schedules and the ledger of each."""
    for one in schedules:
        if one != book.schedules.get(one.name):
            book.blame("I10", None, f"{one.name} is {one}, which should be {book.schedules.get(one.name)}")
    if missing := book.schedules.keys() - {one.name for one in schedules}:
        book.blame("I10", None, f"schedules are gone: {sorted(missing)}")
    kept = {one.uid for one in schedules}
    found = {(uid, tick.slot): tick for uid, tick in ticks}
    right = {name: tick for name, tick in book.ticks.items() if name[0] in kept}
    for name in sorted(found.keys() | right.keys()):
        if found.get(name) != right.get(name):
            book.blame("I10", None, f"a tick is {found.get(name)}, which should be {right.get(name)}")


def on_rest_of_ticks(book: Ledger, now: int) -> None:
    """At rest no slot is left that nobody has dealt with."""
    for one in _left_behind(book, now):
        book.blame("I10", None, f"{one.name}: slot {one.slot} was never dealt with, {now - (one.slot or 0)} µs ago")


def _left_behind(book: Ledger, now: int) -> Iterator[Schedule]:
    for one in book.schedules.values():
        if one.enabled and one.slot is not None:
            grid = Grid(unpack(one.definition))
            if one.slot + grid.spread(one.slot) < now - _REST:
                yield one


def _id(tick: NewTick) -> JobId | None:
    return None if tick.row is None else tick.row.id
