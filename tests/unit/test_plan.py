"""From a definition, a place on the grid of slots, and the store's clock to a plan.

A naive reference deals with the whole grid at each visit of a planner, without limits; plans must come to the same,
however they cut the work.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.schedules.calendar import CronRule, EveryRule, Rule
from headrace.schedules.plan import (
    Definition,
    Delivery,
    Misfire,
    Template,
    job_id,
    look_at,
    make_plan,
    run_at,
    tick,
    unpack,
)
from headrace.seam.ticks import NewTick, Overlap, Plan, Schedule
from tests.unit.given import given

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
START = 1_800_000_000 * SECOND
AHEAD = 60 * SECOND
TEMPLATE = Template("send", {"parameters": b"x"})
UID = bytes(range(16))


def defined(rule: Rule | None = None, **more: object) -> Definition:
    return Definition(rule=rule or EveryRule(10 * SECOND, START), template=TEMPLATE, **more)  # type: ignore[arg-type]


def scheduled(definition: Definition, ahead: int = AHEAD, **more: object) -> Schedule:
    slot = definition.first(START)
    fresh = Schedule(name="s", uid=UID, queue="q", definition=definition.pack(), slot=slot, version=1)
    return replace(fresh, look_at=look_at(fresh, definition, slot, ahead), **more)


def fired(plan: Plan) -> list[int]:
    return [one.slot for one in plan.ticks if one.row is not None]


def missed(plan: Plan) -> list[tuple[int, int]]:
    return [(one.slot, one.count) for one in plan.ticks if one.row is None]


def after_outage(length: int, **more: Any) -> Plan:
    """The plan of a schedule of every ten seconds, after so long without anybody to plan it."""
    definition = defined(**more)
    return make_plan(scheduled(definition), definition, START + length, AHEAD)


# -- any schedule, any visits


class Case(Struct, frozen=True):
    definition: Definition
    visits: list[int]
    ahead: int
    alive: int
    """Bits: of the slot with that number, whether its predecessor's job is alive when it comes."""
    until: int
    """Later than any slot that is dealt with, and some after it."""


_RULES: list[tuple[Rule, int]] = [
    *((EveryRule(interval, START + 7), interval) for interval in (SECOND, 30 * SECOND, 7 * MINUTE + 1, 36 * HOUR)),
    (CronRule("*/10 * * * * *", "UTC"), 10 * SECOND),
    (CronRule("*/15 * * * *", "Australia/Lord_Howe"), 15 * MINUTE),
    (CronRule("30 1,2,23 * * *", "Europe/Madrid"), 8 * HOUR),
    (CronRule("0 0 L * *", "UTC"), 30 * 24 * HOUR),
]
"""With their usual distance between slots."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rule, unit = draw(st.sampled_from(_RULES))
    paces = draw(st.lists(st.one_of(st.floats(0.01, 3), st.floats(0, 60)), min_size=1, max_size=7))
    paces.insert(draw(st.integers(0, len(paces))), draw(st.one_of(st.just(1.0), st.floats(150, 1_300))))
    visits = [START + int(units * unit) for units in accumulate(paces)]
    bounds = st.one_of(st.none(), st.floats(0, 40).map(lambda units: START + int(units * unit)))
    start, end = draw(bounds), draw(bounds)
    if start is not None and end is not None:
        start, end = sorted((start, end))
    spans = st.one_of(st.just(0), st.floats(0, 30).map(lambda units: int(units * unit)))
    definition = Definition(
        rule=rule,
        template=TEMPLATE,
        jitter=draw(st.sampled_from([0.0, 0.1, 0.5])),
        misfire=draw(st.sampled_from(Misfire)),
        max_age=draw(spans),
        grace=draw(spans),
        overlap=draw(st.sampled_from(Overlap)),
        start=start,
        end=end,
        max_runs=draw(st.one_of(st.none(), st.integers(1, 150))),
    )
    ahead = draw(spans)
    until = max(visits[-1], start or 0) + ahead + 4 * unit
    return Case(definition, visits, ahead, draw(st.integers(0, 2**64)), until)


class World:
    """A store and a planner in one thread, without either: what became of each slot."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.fired: list[int] = []
        self.skipped: list[int] = []
        self.missed: list[int] = []
        self.dealt: list[int] = []
        """Every slot, in the order in which it was dealt with."""

    def alive(self, slot: int) -> bool:
        return self.case.definition.overlap is Overlap.SKIP and bool(self.case.alive >> (slot // SECOND % 64) & 1)

    def deal(self, slot: int, outcome: list[int]) -> None:
        outcome.append(slot)
        self.dealt.append(slot)

    def fire(self, slot: int) -> None:
        self.deal(slot, self.skipped if self.alive(slot) else self.fired)


class Naive(World):
    """What should become of them."""

    def __init__(self, case: Case, grid: list[int]) -> None:
        super().__init__(case)
        self._left = list(grid)

    def visit(self, now: int) -> None:
        definition = self.case.definition
        patience = definition.grace
        if definition.misfire is Misfire.ALL:
            patience = max(patience, definition.max_age)
        late = self._take(lambda due: due < now - patience)
        if late and definition.misfire is Misfire.ONCE and not self._over():
            for slot in late[:-1]:
                self.deal(slot, self.missed)
            self.fire(late[-1])
        elif not self._over():
            for slot in late:
                self.deal(slot, self.missed)
        ahead = self.case.ahead if definition.overlap is Overlap.ALLOW else 0
        for slot in self._take(lambda due: due <= now + ahead):
            if not self._over():
                self.fire(slot)

    def _take(self, wanted: Callable[[int], bool]) -> list[int]:
        taken = []
        while self._left and wanted(run_at(UID, self._left[0], self.case.definition)):
            taken.append(self._left.pop(0))
        return taken

    def _over(self) -> bool:
        return self.case.definition.max_runs is not None and len(self.fired) >= self.case.definition.max_runs


class Planned(World):
    """What becomes of them by plans."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.schedule = scheduled(case.definition, case.ahead)
        self.jobs: set[bytes] = set()

    def visit(self, now: int) -> None:
        """As a planner does: as long as the schedule must be looked at. Once in any case, as when it looks a little
        later: the instants at which schedules are looked at are rounded."""
        for number in range(200):
            at = self.schedule.look_at
            if at is None or (at > now and number):
                return
            plan = make_plan(self.schedule, self.case.definition, now, self.case.ahead)
            self.check(plan, now)
            self.carry_out(plan)
        raise AssertionError("it does not come to an end")

    def check(self, plan: Plan, now: int) -> None:
        definition, schedule = self.case.definition, self.schedule
        assert (plan.name, plan.uid, plan.version) == (schedule.name, schedule.uid, schedule.version)
        assert len(plan.ticks) <= 101
        assert plan.look_at is None or plan.look_at > now or plan.ticks
        ahead = self.case.ahead if definition.overlap is Overlap.ALLOW else 0
        if plan.slot is not None:
            ideal = run_at(UID, plan.slot, definition) - ahead
            assert plan.look_at is not None
            assert max(ideal, now) <= plan.look_at < max(ideal + max(1, ahead // 6), now + 1)
        for one in plan.ticks:
            assert one.run_at == run_at(UID, one.slot, definition)
            assert one.overlap is definition.overlap or one.row is None
            if one.row is not None:
                assert (one.row.run_at, one.count) == (one.run_at, 1)
                assert one.run_at <= now + ahead
                assert one.row.id not in self.jobs
                self.jobs.add(one.row.id)

    def carry_out(self, plan: Plan) -> None:
        for one in plan.ticks:
            if one.row is None:
                slot: int | None = one.slot
                for _ in range(one.count):
                    assert slot is not None
                    self.deal(slot, self.missed)
                    slot = self.case.definition.following(slot)
            else:
                self.fire(one.slot)
        self.schedule = replace(
            self.schedule,
            slot=plan.slot,
            look_at=plan.look_at,
            runs=len(self.fired),
            version=self.schedule.version + 1,
            last_slot=self.fired[-1] if self.fired else None,
        )


def grid_of(definition: Definition, until: int) -> list[int]:
    """All slots of a schedule that is made at ``START``."""
    found = []
    slot = definition.first(START)
    while slot is not None and slot <= until:
        found.append(slot)
        slot = definition.following(slot)
    return found


@given(cases(), examples=150)
def test_every_slot_is_dealt_with_once_as_the_policies_say(case: Case) -> None:
    definition = case.definition
    grid = grid_of(definition, case.until)
    naive, planned = Naive(case, grid), Planned(case)
    for now in case.visits:
        naive.visit(now)
        planned.visit(now)
        assert planned.fired == naive.fired
        assert planned.skipped == naive.skipped
        assert planned.missed == naive.missed
    assert planned.dealt == grid[: len(planned.dealt)]
    stands = planned.schedule.slot
    if stands is not None:
        assert stands == grid[len(planned.dealt)]
    elif definition.max_runs is None or len(planned.fired) < definition.max_runs:
        assert len(planned.dealt) == len(grid)


@given(cases(), st.integers(0, 2_000))
def test_jobs_are_due_near_their_slots_and_in_their_order(case: Case, nth: int) -> None:
    definition = case.definition
    rule = definition.rule
    slots = [rule.after(START + nth * MINUTE)]
    for _ in range(5):
        assert slots[-1] is not None
        slots.append(rule.after(slots[-1]))
    dues = []
    for one, other in pairwise(slots):
        assert one is not None
        assert other is not None
        due = run_at(UID, one, definition)
        assert abs(due - one) <= definition.jitter * rule.gap(one) <= definition.jitter * (other - one)
        dues.append(due)
    assert dues == sorted(dues)


def test_jitter_spreads_over_all_that_it_may() -> None:
    definition = defined(jitter=0.1)
    shifts = [run_at(UID, slot, definition) - slot for slot in range(START, START + 1_000 * SECOND, SECOND)]
    assert min(shifts) < -0.095 * 10 * SECOND
    assert max(shifts) > 0.095 * 10 * SECOND
    assert abs(sum(shifts)) / len(shifts) < 0.01 * 10 * SECOND


def test_every_planner_comes_to_the_same_plan() -> None:
    definition = defined(jitter=0.3)
    schedule = scheduled(definition)
    again = unpack(definition.pack())
    assert again == definition
    plans = [make_plan(schedule, one, START + HOUR, AHEAD) for one in (definition, again)]
    assert plans[0] == plans[1]


# -- after an outage


def test_once_fires_the_last_late_slot_for_all_and_those_in_time() -> None:
    plan = after_outage(6 * HOUR, misfire=Misfire.ONCE, grace=30 * SECOND)
    late = START + 6 * HOUR - 40 * SECOND
    assert missed(plan) == [(START + 10 * SECOND, 6 * 360 - 3 - 2)]
    assert fired(plan) == [late + n * 10 * SECOND for n in range(4 + 1 + 6)]


def test_skip_fires_those_in_time_alone() -> None:
    plan = after_outage(6 * HOUR, misfire=Misfire.SKIP, grace=30 * SECOND)
    assert missed(plan) == [(START + 10 * SECOND, 6 * 360 - 4)]
    assert fired(plan)[0] == START + 6 * HOUR - 30 * SECOND


def test_all_fires_what_is_not_too_old_in_its_order() -> None:
    plan = after_outage(6 * HOUR, misfire=Misfire.ALL, max_age=10 * MINUTE)
    assert missed(plan) == [(START + 10 * SECOND, 6 * 360 - 61)]
    assert fired(plan) == [START + 6 * HOUR - 10 * MINUTE + n * 10 * SECOND for n in range(67)]


def test_a_slot_in_time_is_not_too_old() -> None:
    plan = after_outage(50 * SECOND, misfire=Misfire.ALL, max_age=0, grace=MINUTE)
    assert missed(plan) == []
    assert fired(plan)[0] == START + 10 * SECOND


def test_a_long_way_back_takes_several_plans_and_no_plan_is_long() -> None:
    definition = defined(misfire=Misfire.ALL, max_age=6 * HOUR)
    schedule = scheduled(definition)
    plan = make_plan(schedule, definition, START + 6 * HOUR, AHEAD)
    assert len(fired(plan)) == 100
    assert plan.slot == START + 101 * 10 * SECOND
    assert plan.look_at is not None
    assert plan.look_at <= START + 6 * HOUR


def test_a_year_of_seconds_is_missed_in_one_plan_without_walking() -> None:
    definition = defined(EveryRule(SECOND, START), jitter=0.5, misfire=Misfire.SKIP, grace=0)
    schedule, now = scheduled(definition), START + 365 * 24 * HOUR
    plans = []
    for _ in range(3):
        plan = make_plan(schedule, definition, now, 0)
        plans.append(plan)
        schedule = replace(schedule, slot=plan.slot, look_at=plan.look_at)
        if plan.look_at is not None and plan.look_at > now:
            break
    dealt = sum(one.count for plan in plans for one in plan.ticks)
    assert schedule.slot is not None
    assert dealt == (schedule.slot - START) // SECOND - 1
    assert 0 <= now - schedule.slot + SECOND <= 2 * SECOND


def test_a_cron_schedule_that_was_away_for_long_is_walked_in_bounded_steps() -> None:
    definition = defined(CronRule("* * * * * *", "Europe/Madrid"), jitter=0.2, misfire=Misfire.ONCE)
    schedule = scheduled(definition)
    plan = make_plan(schedule, definition, START + 24 * HOUR, AHEAD)
    assert missed(plan) == [(START + SECOND, 1_000)]
    assert plan.slot == START + 1_001 * SECOND


def test_nothing_is_made_up_for_twice_when_two_planners_look_at_once() -> None:
    definition = defined(misfire=Misfire.ONCE)
    schedule = scheduled(definition)
    one, other = (make_plan(schedule, definition, START + HOUR + late, AHEAD) for late in (0, 3))
    assert one.version == other.version == schedule.version


# -- bounds


def test_there_is_no_slot_before_the_start_or_after_the_end() -> None:
    definition = defined(start=START + HOUR, end=START + HOUR + 25 * SECOND)
    schedule = scheduled(definition)
    assert schedule.slot == START + HOUR
    plan = make_plan(schedule, definition, START + HOUR, AHEAD)
    assert fired(plan) == [START + HOUR, START + HOUR + 10 * SECOND, START + HOUR + 20 * SECOND]
    assert (plan.slot, plan.look_at) == (None, None)


def test_a_schedule_is_over_after_so_many_runs() -> None:
    definition = defined(max_runs=5)
    schedule = scheduled(definition, runs=3)
    plan = make_plan(schedule, definition, START, AHEAD)
    assert len(fired(plan)) == 2
    over = make_plan(replace(schedule, runs=5, slot=plan.slot), definition, START, AHEAD)
    assert (list(over.ticks), over.slot, over.look_at) == ([], None, None)


def test_what_was_missed_is_no_run() -> None:
    plan = after_outage(HOUR, max_runs=3, misfire=Misfire.SKIP, grace=0)
    assert len(fired(plan)) == 3


def test_where_slots_may_be_skipped_the_store_says_when_it_is_over() -> None:
    definition = defined(max_runs=1, overlap=Overlap.SKIP)
    schedule = scheduled(definition)
    plan = make_plan(schedule, definition, START + 10 * SECOND, AHEAD)
    assert (len(fired(plan)), plan.slot) == (1, START + 20 * SECOND)
    over = make_plan(replace(schedule, runs=1, slot=plan.slot), definition, START + 20 * SECOND, AHEAD)
    assert (list(over.ticks), over.slot, over.look_at) == ([], None, None)


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.CANCEL])
def test_where_it_matters_how_the_last_job_fares_nothing_is_planned_ahead(overlap: Overlap) -> None:
    definition = defined(overlap=overlap, jitter=0.3)
    schedule = scheduled(definition)
    assert schedule.slot is not None
    due = run_at(UID, schedule.slot, definition)
    assert schedule.look_at == due
    early = make_plan(schedule, definition, due - 1, AHEAD)
    assert (list(early.ticks), early.slot, early.look_at) == ([], schedule.slot, due)
    assert fired(make_plan(schedule, definition, due, AHEAD)) == [schedule.slot]


# -- a dynamic interval


def dynamic(schedule: Schedule, definition: Definition, now: int, *intervals: int | None) -> Plan:
    answers = iter(intervals)
    return make_plan(schedule, definition, now, AHEAD, lambda: next(answers))


def test_a_pace_says_how_far_the_next_slot_is_from_this_one() -> None:
    definition = defined()
    plan = dynamic(scheduled(definition), definition, START + 10 * SECOND, 3 * SECOND)
    assert fired(plan) == [START + 10 * SECOND]
    assert (plan.slot, plan.look_at) == (START + 13 * SECOND, START + 13 * SECOND)


def test_a_pace_of_none_goes_back_to_the_grid() -> None:
    definition = defined()
    schedule = replace(scheduled(definition), slot=START + 13 * SECOND)
    assert dynamic(schedule, definition, START + 13 * SECOND, None).slot == START + 20 * SECOND


def test_a_dynamic_schedule_that_is_looked_at_early_waits_for_its_slot() -> None:
    definition = defined()
    plan = dynamic(scheduled(definition), definition, START)
    assert (list(plan.ticks), plan.look_at) == ([], START + 10 * SECOND)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_jitter_keeps_within_the_distance_that_a_pace_leaves(steps: list[int]) -> None:
    definition = defined(jitter=0.5)
    schedule = scheduled(definition, last_slot=START)
    for step in steps:
        slot = schedule.slot
        assert slot is not None
        assert schedule.last_slot is not None
        plan = dynamic(schedule, definition, slot + 5 * SECOND, step * SECOND, *[HOUR] * 100)
        one = plan.ticks[0]
        assert abs(one.run_at - slot) <= min(5 * SECOND, (slot - schedule.last_slot) // 2)
        schedule = replace(schedule, last_slot=slot, slot=slot + step * SECOND)


# -- jobs


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**47 * 1_000), st.integers(0, 10**9))
def test_the_job_of_a_slot_has_an_id_of_its_own_that_sorts_by_time(uid: bytes, slot: int, later: int) -> None:
    one = UUID(bytes=job_id(uid, slot, slot))
    assert one.version == 7
    assert one.variant == "specified in RFC 4122"
    assert one.int >> 80 == slot // 1_000
    assert job_id(uid, slot, slot) == one.bytes
    assert job_id(uid, slot + 1, slot) != one.bytes
    assert job_id(bytes(b ^ 1 for b in uid), slot, slot) != one.bytes
    assume(later >= 1_000)
    assert job_id(uid, slot + later, slot + later) > one.bytes


def test_ids_do_not_meet() -> None:
    ids = {job_id(uid.to_bytes(16, "big"), slot, 0) for uid in range(100) for slot in range(1_000)}
    assert len(ids) == 100_000


def headers(one: NewTick) -> dict[str, str]:
    assert one.row is not None
    assert one.row.headers is not None
    found: dict[str, str] = msgspec.msgpack.decode(one.row.headers)
    return found


def test_a_job_says_which_slot_of_which_schedule_it_is() -> None:
    definition = Definition(rule=EveryRule(SECOND, START), template=replace(TEMPLATE, headers={"a": "b"}))
    one = tick(scheduled(definition), definition, START, START + 5, START)
    assert headers(one) == {"a": "b", "headrace-schedule": "s", "headrace-slot": f"{UID.hex()}:{START}"}


def test_a_job_is_made_by_the_template() -> None:
    template = Template(
        "send", {"parameters": b"x"}, priority=3, expires=7 * SECOND, max_attempts=4, timeout=SECOND, result_ttl=2
    )
    definition = Definition(rule=EveryRule(SECOND, START), template=template)
    row = tick(scheduled(definition, tenant="acme"), definition, START, START + 5, START).row
    assert row is not None
    assert (row.queue, row.task, row.tenant, row.priority, row.cells) == ("q", "send", "acme", 3, {"parameters": b"x"})
    assert (row.run_at, row.max_attempts, row.timeout, row.result_ttl) == (START + 5, 4, SECOND, 2)


def test_a_job_that_is_planned_ahead_expires_after_it_is_due_and_a_late_one_after_it_is_stored() -> None:
    definition = Definition(rule=EveryRule(SECOND, START), template=replace(TEMPLATE, expires=7 * SECOND))
    schedule = scheduled(definition)
    expires = [tick(schedule, definition, START, START, now).row for now in (START - AHEAD, START, START + HOUR)]
    assert [row and row.expires for row in expires] == [AHEAD + 7 * SECOND, 7 * SECOND, 7 * SECOND]


def test_at_most_once_is_one_attempt_and_says_so() -> None:
    definition = Definition(
        rule=EveryRule(SECOND, START),
        template=replace(TEMPLATE, max_attempts=5, headers={"headrace-delivery": "whatever"}),
        delivery=Delivery.AT_MOST_ONCE,
        misfire=Misfire.SKIP,
    )
    one = tick(scheduled(definition), definition, START, START, START)
    assert one.row is not None
    assert one.row.max_attempts == 1
    assert headers(one)["headrace-delivery"] == "at_most_once"
    assert "headrace-delivery" not in headers(tick(scheduled(definition), defined(), START, START, START))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"rule": {"type": "every", "interval": 1, "anchor": 0}}, "interval"),
        ({"rule": {"type": "every", "interval": 0, "anchor": 0}}, "interval"),
        ({"rule": {"type": "every", "interval": -SECOND, "anchor": 0}}, "interval"),
        ({"rule": {"type": "every", "interval": 2**62, "anchor": 0}}, "interval"),
        ({"rule": {"type": "every", "interval": SECOND, "anchor": 2**62}}, "anchor"),
        ({"jitter": 1e300}, "jitter"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": float("nan")}, "jitter"),
        ({"grace": -1}, "grace"),
        ({"grace": 2**62}, "grace"),
        ({"max_age": -1}, "max_age"),
        ({"max_runs": 0}, "max_runs"),
        ({"start": -1}, "start"),
        ({"end": 2**62}, "end"),
        ({"start": 2 * SECOND, "end": SECOND}, "end"),
        ({"delivery": "at_most_once"}, "misfire"),
        ({"template": {"task": "", "cells": {}}}, "task"),
        ({"template": {"task": "t", "cells": {"other": b""}}}, "cells"),
        ({"template": {"task": "t", "cells": {}, "priority": 40_000}}, "priority"),
        ({"template": {"task": "t", "cells": {}, "expires": -1}}, "expires"),
        ({"template": {"task": "t", "cells": {}, "timeout": 2**62}}, "timeout"),
        ({"template": {"task": "t", "cells": {}, "max_attempts": 0}}, "max_attempts"),
        ({"template": {"task": "t", "cells": {}, "group": "g"}, "queued": True}, "overlap"),
    ],
)
def test_a_stored_definition_says_nothing_that_none_may(more: dict[str, object], told: str) -> None:
    """It may come from anywhere."""
    usual: dict[str, object] = {
        "rule": {"type": "every", "interval": SECOND, "anchor": START},
        "template": {"task": "t", "cells": {}},
    }
    assert unpack(msgspec.msgpack.encode(usual)) == Definition(
        rule=EveryRule(SECOND, START), template=Template("t", {})
    )
    with pytest.raises(ConfigError, match=f"^{told}: "):
        unpack(msgspec.msgpack.encode(usual | more))
