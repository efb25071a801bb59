"""When a schedule fires: the slots of intervals and cron expressions. Pure: no clock, no randomness."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct

from headrace.errors import ConfigError
from headrace.seam.instants import from_datetime, to_datetime
from headrace.text import shown

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LONGEST = 256
_DAY = 86_400_000_000
_TICK = timedelta(seconds=1)
_MICROSECOND = timedelta(microseconds=1)


class EveryRule(Struct, frozen=True, tag="every"):
    """A slot every ``interval``, counted from ``anchor``, which is one itself. It never drifts.

    >>> rule = EveryRule(interval=30, anchor=100)
    >>> rule.after(100), rule.after(129), rule.after(7)
    (130, 130, 10)
    """

    interval: int
    anchor: int

    def after(self, instant: int) -> int | None:
        """The first slot later than this."""
        return self.anchor + ((instant - self.anchor) // self.interval + 1) * self.interval

    def gap(self, slot: int) -> int:
        """The distance from a slot to its nearest neighbour."""
        return self.interval

    def count(self, slot: int, before: int) -> int:
        """How many slots there are from this one on before an instant."""
        return max(0, -((slot - before) // self.interval))


class CronRule(Struct, frozen=True, tag="cron"):
    """The slots of a cron expression, by the clocks of a time zone.

    When clocks go forward, the times of day that they skip fire once, all together, at that instant. When clocks go
    back, a time that they show twice fires the first time. But an expression whose minutes or hours begin with a star
    names no time of day: it fires whenever clocks show what it says, also the second time, and never otherwise.

    >>> rule = CronRule("30 6 * * *", "Europe/Madrid")
    >>> to_datetime(rule.after(1_800_000_000_000_000)).isoformat()
    '2027-01-16T05:30:00+00:00'
    """

    expression: str
    zone: str

    def after(self, instant: int) -> int | None:
        """The first slot later than this; None: there is none."""
        try:
            return self._after(instant)
        except (StopIteration, OverflowError):
            return None

    def before(self, instant: int) -> int | None:
        """The last slot earlier than this."""
        try:
            return self._before(instant)
        except (StopIteration, OverflowError):
            return None

    def gap(self, slot: int) -> int:
        """The distance from a slot to its nearest neighbour."""
        return min(
            (abs(other - slot) for other in (self.before(slot), self.after(slot)) if other is not None), default=0
        )

    # CronSim sees clocks without a zone: times that clocks skip or repeat are handled here.

    def _after(self, instant: int) -> int:
        expression, clocks, starred = self._parts()
        shown_at = clocks.shown_at(instant)
        back = clocks.put_back(instant, instant + _DAY) if starred else None
        if back is not None:
            found = instant + _between(shown_at, next(CronSim(expression, shown_at)))
            if found < back:
                return found
            instant, shown_at = back - 1, clocks.shown_at(back) - _TICK
        return next(
            at
            for time in CronSim(expression, shown_at)
            for at in clocks.instants(time, starred=starred)
            if at > instant
        )  # fmt: skip

    def _before(self, instant: int) -> int:
        expression, clocks, starred = self._parts()
        shown_at = clocks.shown_at(instant)
        back = clocks.put_back(instant - _DAY, instant)
        if back is not None:
            found = instant + _between(shown_at, next(CronSim(expression, shown_at, reverse=True)))
            if starred and found >= back:
                return found
            until = clocks.shown_at(back - 1) + _MICROSECOND
            instant, shown_at = (back, until) if starred else (instant, max(shown_at, until))
        return next(
            at
            for time in CronSim(expression, shown_at, reverse=True)
            for at in reversed(clocks.instants(time, starred=starred))
            if at < instant
        )

    def _parts(self) -> tuple[str, _Clocks, bool]:
        expression = plain(self.expression)
        starred = any(field.startswith("*") for field in expression.split()[-5:-3])
        return expression, _Clocks(zone(self.zone)), starred


class _Clocks:
    """The clocks of a time zone."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone

    def shown_at(self, instant: int) -> datetime:
        """The local time."""
        return to_datetime(instant).astimezone(self._zone).replace(tzinfo=None)

    def instants(self, time: datetime, *, starred: bool) -> list[int]:
        """The instants at which a local time fires: usually one."""
        first, second = (from_datetime(time.replace(tzinfo=self._zone, fold=fold)) for fold in (0, 1))
        if first <= second:
            return [first, second] if starred and first < second else [first]
        return [] if starred else [self._change(second, first)]

    def put_back(self, since: int, until: int) -> int | None:
        """When the clocks go back between two instants at most a day apart; None: they do not."""
        return self._change(since, until) if self._offset(since) > self._offset(until) else None

    def _change(self, since: int, until: int) -> int:
        """When the clocks change: after ``since``, at ``until`` at the latest."""
        before = self._offset(since)
        while until - since > 1:
            middle = (since + until) // 2
            since, until = (middle, until) if self._offset(middle) == before else (since, middle)
        return until

    def _offset(self, instant: int) -> timedelta:
        offset = to_datetime(instant).astimezone(self._zone).utcoffset()
        return timedelta() if offset is None else offset


def _between(one: datetime, other: datetime) -> int:
    return (other - one) // _MICROSECOND


Rule = EveryRule | CronRule


def cron_rule(expression: object, tz: object) -> CronRule:
    """The rule, if it can ever fire. Raises ``ConfigError``."""
    if not isinstance(expression, str) or len(expression) > _LONGEST:
        raise ConfigError(f"cron: expected an expression like '0 6 * * *' or '@daily', got {shown(expression)}")
    if expression.startswith("@") and expression.lower() not in ALIASES:
        raise ConfigError(f"cron: unknown alias {shown(expression)}; there are: {', '.join(ALIASES)}")
    zone(tz)
    rule = CronRule(expression, str(tz))
    try:
        CronSim(plain(expression), to_datetime(0))
    except CronSimError as error:
        fields = "minute hour day month weekday (or six fields, seconds first)"
        raise ConfigError(f"cron: expected {fields}, got {shown(expression)}: {error}") from None
    if rule.after(0) is None:
        raise ConfigError(f"cron: {shown(expression)} names a day that does not exist")
    return rule


def plain(expression: str) -> str:
    """An expression without aliases.

    >>> plain("@daily")
    '0 0 * * *'
    """
    return ALIASES.get(expression.lower(), expression)


_OF_THE_MACHINE = ("localtime", "posixrules", "Factory")
"""Names that mean different zones on different machines, or none: planners would disagree."""


@lru_cache(maxsize=1_024)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def zone(name: object) -> ZoneInfo:
    """A time zone by its name. Raises ``ConfigError``."""
    try:
        if isinstance(name, str) and name not in _OF_THE_MACHINE and not name.startswith(("posix/", "right/")):
            return _zone(name)
    except (KeyError, ValueError, OSError):
        pass
    raise ConfigError(f"tz: expected a time zone like 'Europe/Madrid' or 'UTC', got {shown(name)}")
