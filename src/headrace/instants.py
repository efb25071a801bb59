"""Instants: microseconds since 1970 at the waist, datetimes in UTC for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(instant: int) -> datetime:
    """The datetime of an instant.

    >>> to_datetime(1_800_000_000_000_001).isoformat()
    '2027-01-15T08:00:00.000001+00:00'
    """
    return _EPOCH + timedelta(microseconds=instant)


def from_datetime(moment: datetime) -> int:
    """The instant of a datetime that knows its time zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)
