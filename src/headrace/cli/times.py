"""Instants and lengths of time for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from headrace.core.durations import micros, relative, spell_roughly
from headrace.errors import ConfigError
from headrace.text import shown


def now() -> datetime:
    """This machine's time."""
    return datetime.now(UTC)


def exact(instant: datetime | None, at: datetime) -> str:
    """An instant in full, and how far away it is."""
    if instant is None:
        return ""
    return f"{instant.astimezone().isoformat(sep=' ', timespec='milliseconds')} ({relative(instant, at)})"


def by_clock(instant: datetime | None, zone: tzinfo | None = None) -> str:
    """Local time in a zone, to the second. Default: this machine's zone.

    >>> by_clock(datetime(2030, 1, 1, 12, 0, 0, 5, tzinfo=UTC), UTC)
    '2030-01-01 12:00:00 UTC'
    """
    return "" if instant is None else instant.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")


def read_instant(text: str, at: datetime, zone: tzinfo) -> datetime:
    """An instant as people write it: a date, a date and time (in ``zone`` if there is no offset), or how long ago it
    was. Raises ``ConfigError``.

    >>> noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    >>> read_instant("2030-01-01T06:30", noon, UTC).isoformat(), read_instant("90m", noon, UTC).isoformat()
    ('2030-01-01T06:30:00+00:00', '2030-01-01T10:30:00+00:00')
    """
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        try:
            return at - timedelta(microseconds=micros(text))
        except (ConfigError, OverflowError):
            raise ConfigError(
                f"expected a time like 2030-01-31T06:00 or 2030-01-31T06:00+01:00, or how long ago it was, like 6h, "
                f"got {shown(text)}"
            ) from None
    return given if given.utcoffset() is not None else given.replace(tzinfo=zone)


def length(span: int | None) -> str:
    """A rounded length of time, or a dash for none.

    >>> length(202_698), length(5_400_123_456), length(None)
    ('202ms', '1h30m', '-')
    """
    return "-" if span is None else spell_roughly(span)


def seconds(span: int | None) -> float | None:
    """In seconds, for programs."""
    return None if span is None else span / 1e6
