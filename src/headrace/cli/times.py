"""Instants and lengths of time for people."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.durations import spell


def now() -> datetime:
    """This machine's time."""
    return datetime.now(UTC)


def relative(instant: datetime | None, at: datetime) -> str:
    """How far away an instant is.

    >>> noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    >>> relative(noon, noon.replace(hour=13)), relative(noon, noon.replace(hour=11)), relative(noon, noon)
    ('1h ago', 'in 1h', 'just now')
    """
    if instant is None:
        return ""
    micros = round((at - instant).total_seconds()) * 1_000_000
    if not micros:
        return "just now" if instant <= at else "in a moment"
    return f"{spell(micros)} ago" if micros > 0 else f"in {spell(-micros)}"


def exact(instant: datetime | None, at: datetime) -> str:
    """An instant in full, and how far away it is."""
    if instant is None:
        return ""
    return f"{instant.astimezone().isoformat(sep=' ', timespec='milliseconds')} ({relative(instant, at)})"


def length(micros: int | None) -> str:
    """A length of time without its small change, or a dash for none.

    >>> length(202_698), length(5_400_123_456), length(None)
    ('202ms', '1h30m', '-')
    """
    if micros is None:
        return "-"
    coarse = next(unit for unit in (1_000_000, 1_000, 1) if micros >= unit or unit == 1)
    return spell(micros // coarse * coarse)


def seconds(micros: int | None) -> float | None:
    """For programs."""
    return None if micros is None else micros / 1e6
