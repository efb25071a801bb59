"""Instants: microseconds since 1970 at the waist, datetimes in UTC for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_FIRST, _LAST = (
    (day - _EPOCH) // timedelta(microseconds=1)
    for day in (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC))
)
"""A day from the ends, so that every time zone has them."""


def to_datetime(instant: int) -> datetime:
    """The datetime of an instant; of one that no calendar has, the first or the last day that there is.

    >>> to_datetime(1_800_000_000_000_001).isoformat()
    '2027-01-15T08:00:00.000001+00:00'
    >>> to_datetime(2**62).year
    9999
    """
    return _EPOCH + timedelta(microseconds=max(_FIRST, min(instant, _LAST)))


def datetime_or_none(instant: int | None) -> datetime | None:
    """The same for an instant that may be missing."""
    return None if instant is None else to_datetime(instant)


def from_datetime(moment: datetime) -> int:
    """The instant of a datetime that knows its time zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)
