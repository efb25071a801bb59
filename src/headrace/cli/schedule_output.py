"""Schedules as text: the list, one in full, what comes next, and what became of past slots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from msgspec import Struct

from headrace.cli.job_output import shorten
from headrace.cli.output import counted, print_fields, print_table
from headrace.cli.times import by_clock, exact, length
from headrace.core.durations import relative
from headrace.schedules.calendar import zone
from headrace.schedules.coverage import coverage
from headrace.schedules.spec import ScheduleInfo, TickInfo, status


class Planned(Struct, frozen=True):
    """Future slots whose jobs are already stored."""

    count: int
    until: datetime | None
    """The last of them."""
    more: bool
    """Whether there may be more than were read."""


def planned(ticks: Sequence[TickInfo], at: datetime, most: int) -> Planned:
    """Among these ticks, of which at most ``most`` were read."""
    ahead = [tick for tick in ticks if tick.slot >= at]
    return Planned(len(ahead), ahead[0].slot if ahead else None, len(ahead) == most)


def zone_of(schedule: ScheduleInfo) -> tzinfo:
    """Its time zone; intervals have none and are shown in UTC."""
    return zone(schedule.tz or "UTC")


def fate(tick: TickInfo | None, at: datetime) -> str:
    """What became of a slot, in a few words."""
    if tick is None:
        return ""
    when = relative(tick.run_at, at)
    if tick.outcome != "fired":
        return f"{_outcome(tick)} {when}"
    return f"{_STATES.get(tick.state, tick.state or 'fired')} {when}"


_STATES = {"available": "due", "running": "running, due", "paused": "paused, due"}


def _outcome(tick: TickInfo) -> str:
    return tick.outcome + (f" ×{tick.count:,}" if tick.count > 1 else "")


class Row(Struct, frozen=True):
    """A line of the list."""

    schedule: ScheduleInfo
    next: datetime | None
    last: TickInfo | None

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        last = None if self.last is None else self.last.to_dict()
        return self.schedule.to_dict() | {"next": self.next, "last": last}


def print_schedules(rows: Sequence[Row], at: datetime) -> None:
    """A list of schedules for people."""
    print_table(
        ("name", "rule", "zone", "next", "here", "last", "planned", ""),
        [
            (
                row.schedule.name,
                row.schedule.rule,
                row.schedule.tz,
                by_clock(row.next, zone_of(row.schedule)),
                f"{row.next.astimezone():%H:%M:%S}, {relative(row.next, at)}" if row.next else "",
                fate(row.last, at),
                row.schedule.runs,
                status(row.schedule),
            )
            for row in rows
        ],
    )


def print_schedule(
    schedule: ScheduleInfo, coming: Sequence[datetime], ticks: Sequence[TickInfo], ahead: Planned, at: datetime
) -> None:
    """Everything about one schedule, for people."""
    clocks = zone_of(schedule)
    limits = {"from": by_clock(schedule.start, clocks), "to": by_clock(schedule.end, clocks)}
    print_fields(
        [
            ("name", schedule.name),
            ("rule", schedule.rule),
            ("zone", schedule.tz),
            ("status", status(schedule)),
            ("task", schedule.task),
            ("args", shorten(schedule.args)),
            ("queue", schedule.queue),
            ("tenant", schedule.tenant),
            ("priority", schedule.priority or ""),
            ("next", _both(coming[0], clocks, at) if coming else ""),
            ("last", fate(ticks[0] if ticks else None, at)),
            ("planned", _planned(ahead, clocks)),
            ("runs", _runs(schedule, ahead)),
            ("limits", "  ".join(f"{name} {when}" for name, when in limits.items() if when)),
            ("jitter", f"±{schedule.jitter:.0%} of the interval" if schedule.jitter else ""),
            ("misfire", _misfire(schedule)),
            ("overlap", schedule.overlap),
            ("delivery", schedule.delivery),
            ("plan_priority", schedule.plan_priority or ""),
            ("interval", "set by a function" if schedule.dynamic_interval else ""),
            ("made", exact(schedule.created_at, at)),
            ("changed", exact(schedule.updated_at, at)),
            ("coverage", f"{coverage(ticks)}"),
        ]
    )
    if ticks:
        print()
        print_ticks(ticks, clocks, at)


def _planned(ahead: Planned, clocks: tzinfo) -> str:
    if not ahead.count:
        return ""
    number = f"{counted(ahead.count, 'slot')}{' or more' if ahead.more else ''}"
    return f"{number} ahead, until {by_clock(ahead.until, clocks)}"


def _runs(schedule: ScheduleInfo, ahead: Planned) -> str:
    """How often it has fired, not counting future slots."""
    most = f" of {schedule.max_runs:,}" if schedule.max_runs else ""
    return f"{schedule.runs:,}{most}, including those ahead" if ahead.more else f"{schedule.runs - ahead.count:,}{most}"


def _both(instant: datetime, clocks: tzinfo, at: datetime) -> str:
    return f"{by_clock(instant, clocks)} ({relative(instant, at)}; here {by_clock(instant)})"


def _misfire(schedule: ScheduleInfo) -> str:
    if schedule.misfire == "all":
        return f"all slots up to {_spelt(schedule.max_age)} late"
    return f"{schedule.misfire}, for slots more than {_spelt(schedule.grace)} late"


def _spelt(seconds: float | None) -> str:
    return length(None if seconds is None else round(seconds * 1e6))


def print_ticks(ticks: Sequence[TickInfo], clocks: tzinfo, at: datetime) -> None:
    """What became of slots."""
    print_table(
        ("slot", "outcome", "job", "waited", "ran", "id"),
        [
            (
                by_clock(tick.slot, clocks),
                _outcome(tick),
                f"due {relative(tick.run_at, at)}" if tick.state == "available" else tick.state,
                _spelt(tick.waited),
                _spelt(tick.ran),
                tick.job or "",
            )
            for tick in ticks
        ],
    )


class Coming(Struct, frozen=True):
    """A future instant."""

    at: datetime
    local: datetime
    """In the schedule's zone."""
    clocks: str
    """How the clocks of the zone changed since the instant before."""


def coming(instants: Sequence[datetime], clocks: tzinfo, at: datetime) -> list[Coming]:
    """Instants, each with what the clocks did since the one before.

    >>> madrid = zone("Europe/Madrid")
    >>> days = [datetime(2030, 3, day, 5, tzinfo=UTC) for day in (30, 31)]
    >>> [one.clocks for one in coming(days, madrid, days[0])]
    ['', 'go forward by 1h']
    """
    offset = _offset(at, clocks)
    listed = []
    for instant in instants:
        before, offset = offset, _offset(instant, clocks)
        way = "forward" if offset > before else "back"
        moved = f"go {way} by {_spelt(abs(offset - before).total_seconds())}" if offset != before else ""
        listed.append(Coming(instant.astimezone(UTC), instant.astimezone(clocks), moved))
    return listed


def _offset(instant: datetime, clocks: tzinfo) -> timedelta:
    return instant.astimezone(clocks).utcoffset() or timedelta()


def print_coming(listed: Sequence[Coming], schedule: ScheduleInfo, at: datetime) -> None:
    """Future instants, for people."""
    moved = any(one.clocks for one in listed)
    clocks = zone_of(schedule)
    print_table(
        ("due", *(["utc"] if schedule.tz else []), "when", *(["clocks"] if moved else [])),
        [
            (
                by_clock(one.at, clocks),
                *([by_clock(one.at, UTC)] if schedule.tz else []),
                relative(one.at, at),
                *([one.clocks] if moved else []),
            )
            for one in listed
        ],
    )
