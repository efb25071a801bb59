"""Durations as people write them, in microseconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from headrace.errors import ConfigError
from headrace.text import shown
from headrace.types import Duration

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h|d)")
_LONGEST_TEXT = 64
LONGEST = 10 * 366 * _UNITS["d"]
"""Ten years: nothing that Headrace waits for may take longer."""


def micros(value: Duration, what: str = "duration") -> int:
    """The duration in microseconds.

    >>> micros("1h30m"), micros(0.25), micros("250ms")
    (5400000000, 250000, 250000)
    """
    if isinstance(value, str):
        length = _parse(value, what)
    elif isinstance(value, timedelta):
        length = value // timedelta(microseconds=1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value != value or abs(value) * 1_000_000 > LONGEST:
            raise ConfigError(f"{what}: expected at most ten years in seconds, got {shown(value)}")
        length = round(value * 1_000_000)
    else:
        kind = type(value).__name__
        raise ConfigError(f"{what}: expected seconds, a string like '30s' or a timedelta, got {kind} {shown(value)}")
    if not 0 <= length <= LONGEST:
        raise ConfigError(f"{what}: expected between 0 and ten years, got {shown(value)}")
    return length


def _parse(text: str, what: str) -> int:
    compact = text.replace(" ", "") if len(text) <= _LONGEST_TEXT else ""
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ConfigError(f"{what}: expected a duration like '30s', '1h30m' or '250ms', got {shown(text)}")
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


def spell(length: int) -> str:
    """Microseconds as people write them, in the two largest units.

    >>> spell(5_400_000_000), spell(250_000), spell(0)
    ('1h30m', '250ms', '0s')
    """
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, length = divmod(length, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
        if len(parts) == 2 or (parts and unit == "s"):
            break
    return "".join(parts) or "0s"


def spell_roughly(length: int) -> str:
    """Microseconds as people write them, cut to whole seconds (below a second, to whole milliseconds).

    >>> spell_roughly(89_950), spell_roughly(5_400_123_456)
    ('89ms', '1h30m')
    """
    coarse = next(unit for unit in (1_000_000, 1_000, 1) if length >= unit or unit == 1)
    return spell(length // coarse * coarse)


def spell_exactly(length: int) -> str:
    """Microseconds as people write them, without loss.

    >>> spell_exactly(5_400_000_001), spell_exactly(600_000_000)
    ('1h30m1us', '10m')
    """
    parts = []
    for unit in ("d", "h", "m", "s", "us"):
        count, length = divmod(length, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def relative(instant: datetime | None, at: datetime) -> str:
    """How far away an instant is.

    >>> noon = datetime(2030, 1, 1, 12)
    >>> relative(noon, noon.replace(hour=13)), relative(noon, noon.replace(hour=11)), relative(noon, noon)
    ('1h ago', 'in 1h', 'just now')
    """
    if instant is None:
        return ""
    distance = round((at - instant).total_seconds()) * 1_000_000
    if not distance:
        return "just now" if instant <= at else "in a moment"
    return f"{spell(distance)} ago" if distance > 0 else f"in {spell(-distance)}"
