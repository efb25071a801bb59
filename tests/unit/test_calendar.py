"""Intervals and cron expressions as slots on the line of time.

What becomes of cron expressions when clocks change is said by one rule, and a reference in this file follows it minute
by minute, with nothing but ``zoneinfo`` and the meaning of the fields:

* An expression whose minutes or hours begin with a star names no time of day. It fires at every instant at which the
  clocks of its zone show what it says: twice where they show it twice, never where they skip it.
* Any other names times of day. A time that clocks show twice fires the first time only. Times that they skip fire at
  the instant at which they are put forward, once for all of them, and not beside a slot that is there anyway.

That is what cronsim 2.8 does with five fields as long as it is asked for one slot after the other. It is not what it
does with six (names of times count as stars), when it is asked from within a repeated hour (it answers with a slot that
is past), for a day whose midnight is skipped, and where clocks change by half an hour: hence the rule has its own hand.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.schedules.calendar import ALIASES, CronRule, EveryRule, cron_rule, plain, zone
from headrace.seam.instants import from_datetime, to_datetime
from tests.unit.given import given

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
ONE = timedelta(minutes=1)
ZONES = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Asuncion",
    "America/Havana",
    "America/New_York",
    "America/Santiago",
    "America/St_Johns",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kolkata",
    "Asia/Tehran",
    "Atlantic/Azores",
    "Australia/Lord_Howe",
    "Europe/Dublin",
    "Europe/London",
    "Europe/Madrid",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "UTC",
]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
STEADY = {"Asia/Kolkata", "Pacific/Kiritimati", "UTC"}
"""Zones whose clocks never change in these years."""


def instant(text: str, name: str = "UTC", fold: int = 0) -> int:
    return from_datetime(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(name), fold=fold))


def walk(rule: CronRule, since: int, until: int) -> list[int]:
    """Slots later than ``since``, up to ``until``."""
    found: list[int] = []
    slot = rule.after(since)
    while slot is not None and slot <= until:
        found.append(slot)
        slot = rule.after(slot)
    return found


# -- the reference


class Fields:
    """What an expression of five or six fields says, by the book."""

    def __init__(self, expression: str) -> None:
        fields = expression.upper().split()
        if len(fields) == 5:
            fields.insert(0, "0")
        self.seconds, self.minutes, self.hours = (
            self._numbers(field, 0, top) for field, top in zip(fields[:3], (59, 59, 23), strict=True)
        )
        self._days, self._weekdays = fields[3], fields[5]
        self._months = self._numbers(fields[4], 1, 12)
        self._both = fields[3][0] == "*" or fields[5][0] == "*"
        self.starred = fields[1][0] == "*" or fields[2][0] == "*"

    def day(self, day: date) -> bool:
        last = calendar.monthrange(day.year, day.month)[1]
        by_date = any(
            day.day == last if term == "L" else day.day in self._numbers(term, 1, 31) for term in self._days.split(",")
        )
        by_weekday = any(self._weekday(term, day, last) for term in self._weekdays.split(","))
        matches = by_date and by_weekday if self._both else by_date or by_weekday
        return matches and day.month in self._months

    def _weekday(self, term: str, day: date, last: int) -> bool:
        weekday = day.isoweekday() % 7
        if "#" in term:
            name, nth = term.split("#")
            return weekday == self._number(name) % 7 and (day.day - 1) // 7 + 1 == int(nth)
        if term.endswith("L"):
            return weekday == int(term[:-1]) % 7 and day.day + 7 > last
        return weekday in {n % 7 for n in self._numbers(term, 0, 7)}

    def _numbers(self, field: str, low: int, high: int) -> frozenset[int]:
        found: set[int] = set()
        for term in field.split(","):
            span, _, step = term.partition("/")
            first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
            top = self._number(last) if last else high if step else self._number(first)
            found.update(range(self._number(first), top + 1, int(step or 1)))
        return frozenset(found)

    def _number(self, text: str) -> int:
        """Of a weekday or a month by its name, or as it stands."""
        if not text.isalpha():
            return int(text)
        return WEEKDAYS.index(text) if text in WEEKDAYS else MONTHS.index(text) + 1


def reference(expression: str, name: str, since: int, until: int) -> list[int]:
    """The slots later than ``since`` up to ``until``, both on whole minutes, by looking at the clocks every minute."""
    fields = Fields(expression)
    days: dict[date, bool] = {}

    def matches(moment: datetime) -> bool:
        if moment.minute not in fields.minutes or moment.hour not in fields.hours:
            return False
        day = moment.date()
        if day not in days:
            days[day] = fields.day(day)
        return days[day]

    found = []
    for minute, moment, jumped_over in clocks(name, since, until):
        fires = matches(moment) and (fields.starred or not moment.fold)
        if fires or (jumped_over and not fields.starred and any(map(matches, jumped_over))):
            found += [at for second in sorted(fields.seconds) if (at := minute + second * SECOND) <= until]
    return found


@lru_cache(maxsize=4)
def clocks(name: str, since: int, until: int) -> list[tuple[int, datetime, list[datetime]]]:
    """Every minute later than ``since``: what clocks show then, and the times that they have just jumped over."""
    here, seen = ZoneInfo(name), []
    before = to_datetime(since).astimezone(here)
    for minute in range(since + MINUTE, until + 1, MINUTE):
        moment = to_datetime(minute).astimezone(here)
        seen.append((minute, moment, list(skipped(before, moment)) if moment - before > ONE else []))
        before = moment
    return seen


def skipped(before: datetime, after: datetime) -> Iterator[datetime]:
    """The times that clocks jump over from one minute to the next."""
    shown, until = before.replace(tzinfo=None) + ONE, after.replace(tzinfo=None)
    while shown < until:
        yield shown
        shown += ONE


@lru_cache
def changes(name: str) -> tuple[int, ...]:
    """The instants at which the clocks of a zone change, 2020 to 2035."""
    here, found = ZoneInfo(name), []
    day, end = instant("2020-01-01"), instant("2036-01-01")
    while day < end:
        if offset(here, day) != offset(here, day + DAY):
            low, high = day, day + DAY
            while high - low > MINUTE:
                middle = (low + high) // 2 // MINUTE * MINUTE
                low, high = (middle, high) if offset(here, middle) == offset(here, day) else (low, middle)
            found.append(high)
        day += DAY
    return tuple(found)


def offset(here: ZoneInfo, at: int) -> timedelta | None:
    return to_datetime(at).astimezone(here).utcoffset()


def at_change(name: str, change: int) -> list[str]:
    """Expressions that a change of clocks is hard on: at times within, at and beside those it skips or repeats."""
    here = ZoneInfo(name)
    after, before = (to_datetime(change + by).astimezone(here).replace(tzinfo=None) for by in (0, -MINUTE))
    low, high = sorted((after, before + ONE))
    within, last = low + (high - low) / 2, high - ONE
    weekday = within.isoweekday() % 7
    return [
        f"{within.minute} {within.hour} * * *",
        f"{low.minute} {low.hour} * * *",
        f"{high.minute} {high.hour} * * *",
        f"{last.minute} {last.hour} * * *",
        f"{low.minute},{within.minute},{last.minute} {low.hour},{last.hour},{high.hour} * * *",
        f"{within.minute} {within.hour} * * {weekday}",
        f"*/15 {within.hour} * * {weekday}",
    ]


# -- when clocks change


@pytest.mark.parametrize("name", ZONES)
def test_every_change_of_clocks_until_2035_is_as_the_reference_has_it(name: str) -> None:
    for change in changes(name) or (instant("2027-03-28T01:00"), instant("2031-10-26T01:00")):
        for expression in at_change(name, change):
            since, until = change - 4 * HOUR, change + 25 * HOUR
            assert walk(CronRule(expression, name), since, until) == reference(expression, name, since, until)
        for expression in ("0 * * * *", "*/15 * * * *", "7-59/15 */2 * * *", "30 0-23 * * *", "30 2 * * 0"):
            since, until = change - 5 * HOUR, change + 5 * HOUR
            assert walk(CronRule(expression, name), since, until) == reference(expression, name, since, until)


@pytest.mark.parametrize("name", ["America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kolkata"])
def test_the_last_day_of_each_month_is_as_the_reference_has_it(name: str) -> None:
    for year in (2023, 2024, 2031):
        since, until = instant(f"{year}-01-01"), instant(f"{year + 1}-01-01")
        slots = walk(CronRule("30 2 L * *", name), since, until)
        assert len(slots) == 12
        around = [each for slot in slots for each in reference("30 2 L * *", name, slot - 3 * HOUR, slot + 3 * HOUR)]
        assert slots == around


@pytest.mark.parametrize("name", [name for name in ZONES if name not in STEADY])
def test_from_any_instant_near_a_change_the_neighbours_are_those_of_the_reference(name: str) -> None:
    rng = Random(name)
    for change in rng.sample(changes(name), min(6, len(changes(name)))):
        for expression in [*at_change(name, change)[:5], "*/20 * * * *"]:
            rule = CronRule(expression, name)
            slots = reference(expression, name, change - 30 * HOUR, change + 30 * HOUR)
            given = [change, change - 1, change + 1, *rng.sample(slots, min(3, len(slots)))]
            given += [change + rng.randint(-4 * HOUR, 4 * HOUR) for _ in range(8)]
            for at in given:
                if slots[0] < at < slots[-1]:
                    assert rule.after(at) == min(slot for slot in slots if slot > at)
                    assert rule.before(at) == max(slot for slot in slots if slot < at)


def test_zones_whose_clocks_change_do_and_the_others_do_not() -> None:
    assert {name for name in ZONES if not changes(name)} == STEADY
    assert sum(len(changes(name)) for name in ZONES) > 400


SPRING, FALL = "2024-03-10", "2024-11-03"


@pytest.mark.parametrize(
    ("expression", "day", "times"),
    [
        ("30 2 * * *", SPRING, ["03:00"]),
        ("0,30 2 * * *", SPRING, ["03:00"]),
        ("0 2,3 * * *", SPRING, ["03:00"]),
        ("30 2,3 * * *", SPRING, ["03:00", "03:30"]),
        ("0 30 2 * * *", SPRING, ["03:00"]),
        ("*/20 30 2 * * *", SPRING, ["03:00"]),
        ("*/30 2 * * *", SPRING, []),
        ("30 1 * * *", FALL, ["01:30"]),
        ("0 30 1 * * *", FALL, ["01:30"]),
        ("*/30 1 * * *", FALL, ["01:00", "01:30", "01:00", "01:30"]),
        ("30 */6 * * *", FALL, ["00:30", "06:30", "12:30", "18:30"]),
    ],
)
def test_what_new_york_has_in_spring_and_in_fall(expression: str, day: str, times: list[str]) -> None:
    since = instant(day, "America/New_York") - 1
    until = since + DAY + (HOUR if day == FALL else -HOUR)
    found = walk(CronRule(expression, "America/New_York"), since, until)
    assert [f"{to_datetime(slot).astimezone(ZoneInfo('America/New_York')):%H:%M}" for slot in found] == times


def test_a_slot_that_is_past_is_never_the_next_one() -> None:
    rule = CronRule("30 1 * * *", "America/New_York")
    second_time = instant("2024-11-03T01:10", "America/New_York", fold=1)
    assert rule.after(second_time) == instant("2024-11-04T01:30", "America/New_York")
    assert rule.before(second_time) == instant("2024-11-03T01:30", "America/New_York")


def test_hours_are_not_passed_over_where_clocks_change_by_half_an_hour() -> None:
    rule = CronRule("*/15 2 * * *", "Australia/Lord_Howe")
    since = instant("2024-04-07T00:00", "Australia/Lord_Howe")
    found = [to_datetime(slot).astimezone(ZoneInfo("Australia/Lord_Howe")) for slot in walk(rule, since, since + DAY)]
    assert [f"{moment:%H:%M}" for moment in found] == ["02:00", "02:15", "02:30", "02:45"]


def test_a_midnight_that_is_skipped_lends_its_slots_to_no_other_hour() -> None:
    assert walk(CronRule("*/15 0 * * FRI", "Africa/Cairo"), *_day("2024-04-26", "Africa/Cairo")) == []
    [slot] = walk(CronRule("0 0 * * FRI", "Africa/Cairo"), *_day("2024-04-26", "Africa/Cairo"))
    assert slot == instant("2024-04-26T01:00", "Africa/Cairo")


def _day(text: str, name: str) -> tuple[int, int]:
    """From the instant before its first minute to its noon."""
    noon = instant(f"{text}T12:00", name)
    return noon - 12 * HOUR, noon


# -- expressions

_minutes = st.sampled_from(["0", "7", "*", "*/15", "3-50/9", "59", "10,20"])
_hours = st.sampled_from(["0", "*", "*/3", "1-4", "23", "2,14", "5/7"])
_days = st.sampled_from(["*", "1", "L", "15,L", "10-20", "*/5", "31", "29"])
_months = st.sampled_from(["*", "2", "JAN-MAR", "*/2", "feb,dec"])
_weekdays = st.sampled_from(["*", "MON", "MON-FRI", "7", "0", "MON#2", "5L", "SUN#1,WED#3", "*/2", "sat"])


@given(
    st.tuples(_minutes, _hours, _days, _months, _weekdays).map(" ".join),
    st.sampled_from(["UTC", "Europe/Madrid", "America/St_Johns", "Pacific/Chatham"]),
    st.integers(instant("2024-01-01") // MINUTE, instant("2029-01-01") // MINUTE),
    examples=150,
)
def test_expressions_say_what_the_fields_say(expression: str, name: str, minute: int) -> None:
    try:
        rule = cron_rule(expression, name)
    except ConfigError:
        assert expression.split()[2] in ("31", "29")
        return
    since, until = minute * MINUTE, minute * MINUTE + 26 * HOUR
    slots = walk(rule, since, until)
    assert slots == reference(expression, name, since, until)
    for one, other in pairwise(slots):
        assert rule.before(other) == one


@pytest.mark.parametrize(
    ("expression", "since", "slot"),
    [
        ("0 6 L * *", "2024-02-10", "2024-02-29T06:00"),
        ("0 6 * * MON#2", "2024-02-01", "2024-02-12T06:00"),
        ("0 6 * * 5L", "2024-02-01", "2024-02-23T06:00"),
        ("0 6 LW * *", "2024-06-01", "2024-06-28T06:00"),
        ("0 0 29 2 *", "2025-01-01", "2028-02-29T00:00"),
        ("0 0 13 * FRI", "2024-01-01", "2024-01-05T00:00"),
        ("0 0 */13 * FRI", "2024-01-01", "2024-03-01T00:00"),
        ("30 0 0 * * *", "2024-01-01", "2024-01-01T00:00:30"),
        ("*/20 59 23 31 12 *", "2024-01-01", "2024-12-31T23:59"),
    ],
)
def test_last_days_weekdays_of_a_month_and_seconds(expression: str, since: str, slot: str) -> None:
    assert cron_rule(expression, "UTC").after(instant(since)) == instant(slot)


def test_six_fields_fire_by_the_second() -> None:
    start = instant("2024-01-01")
    assert walk(cron_rule("*/20 * * * * *", "UTC"), start, start + MINUTE) == [
        start + 20 * SECOND,
        start + 40 * SECOND,
        start + MINUTE,
    ]


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_its_expression_in_any_case(alias: str) -> None:
    start = instant("2024-05-17T10:11")
    assert cron_rule(alias.upper(), "UTC").after(start) == cron_rule(plain(alias), "UTC").after(start)


@pytest.mark.parametrize(
    ("alias", "slot"),
    [
        ("@hourly", "2024-05-17T11:00"),
        ("@daily", "2024-05-18"),
        ("@midnight", "2024-05-18"),
        ("@weekly", "2024-05-19"),
        ("@monthly", "2024-06-01"),
        ("@yearly", "2025-01-01"),
        ("@annually", "2025-01-01"),
    ],
)
def test_aliases_are_what_they_are_everywhere(alias: str, slot: str) -> None:
    assert cron_rule(alias, "UTC").after(instant("2024-05-17T10:11")) == instant(slot)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "   ",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "* * * * MON#6",
        "* * * * L",
        "*/0 * * * *",
        "9-5 * * * *",
        "-1 * * * *",
        "a b c d e",
        "1.5 * * * *",
        "١ * * * *",
        "0 0 30 2 *",
        "0 0 */31 * MON#5",
        "* " * 200,
        None,
        5,
        b"* * * * *",
        ["* * * * *"],
    ],
)
def test_an_expression_that_is_none_is_refused_with_what_was_given(expression: object) -> None:
    with pytest.raises(ConfigError, match=r"^cron: "):
        cron_rule(expression, "UTC")


def test_an_unknown_alias_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown alias '@reboot'; there are: @yearly.*@hourly"):
        cron_rule("@reboot", "UTC")


def test_the_error_names_the_field() -> None:
    with pytest.raises(ConfigError, match=r"minute hour day month weekday.*'61 \* \* \* \*': Bad minute"):
        cron_rule("61 * * * *", "UTC")


@pytest.mark.parametrize(
    "name", ["", "Europe", "Mars/Olympus", "../etc/passwd", "UTC\0", "\ud800", "A" * 5_000, None, 7]
)
def test_a_zone_that_is_none_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match=r"^tz: expected a time zone like 'Europe/Madrid'"):
        zone(name)
    with pytest.raises(ConfigError, match=r"^tz: "):
        cron_rule("@daily", name)


def test_there_is_no_slot_after_the_end_of_the_calendar_or_before_its_beginning() -> None:
    rule = cron_rule("0 0 1 1 *", "UTC")
    assert rule.after(instant("9999-06-01")) is None
    assert rule.before(from_datetime(datetime(1, 1, 1, tzinfo=UTC))) is None
    assert rule.after(2**62) is None


# -- the distance between slots


def test_the_gap_is_the_distance_to_the_nearest_neighbour() -> None:
    rule = cron_rule("0 6,8,14 * * *", "UTC")
    gaps = {slot[-5:]: rule.gap(instant(slot)) // HOUR for slot in ("2024-01-02T06:00", "2024-01-02T08:00")}
    assert gaps == {"06:00": 2, "08:00": 2}
    assert rule.gap(instant("2024-01-02T14:00")) == 6 * HOUR


def test_the_gap_shrinks_where_clocks_are_put_forward() -> None:
    rule = CronRule("0 2,4 * * *", "America/New_York")
    assert rule.gap(instant("2024-03-10T03:00", "America/New_York")) == HOUR
    assert rule.gap(instant("2024-03-11T02:00", "America/New_York")) == 2 * HOUR


# -- intervals


@given(st.integers(1, 10**14), st.integers(-(10**15), 10**15), st.integers(-(10**15), 10**16))
def test_slots_of_an_interval_are_counted_from_its_anchor(interval: int, anchor: int, at: int) -> None:
    rule = EveryRule(interval, anchor)
    slot = rule.after(at)
    assert slot is not None
    assert (slot - anchor) % interval == 0
    assert at < slot <= at + interval
    assert rule.gap(slot) == interval


@given(st.integers(1, 50), st.integers(-100, 100), st.integers(0, 40), st.integers(-300, 300))
def test_slots_of_an_interval_can_be_counted_without_walking(interval: int, anchor: int, nth: int, before: int) -> None:
    rule = EveryRule(interval, anchor)
    slot = anchor + nth * interval
    assert rule.count(slot, before) == len(range(slot, before, interval))
