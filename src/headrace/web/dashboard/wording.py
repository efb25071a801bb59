"""Numbers, lengths and instants as pages show them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from headrace.core.durations import spell_roughly

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
DASH = "–"


def number(value: float | int | None) -> str:
    """A whole number with separators.

    >>> number(1234567), number(None)
    ('1,234,567', '–')
    """
    return DASH if value is None else f"{round(value):,}"


def short(value: float | int | None) -> str:
    """A number in few characters.

    >>> short(0), short(0.25), short(9.96), short(999), short(12_345), short(1_500_000)
    ('0', '0.25', '10', '999', '12.3k', '1.5M')
    """
    if value is None:
        return DASH
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= bound:
            scaled = value / (bound if unit != "k" else 1e3)
            return f"{scaled:.1f}".removesuffix(".0") + unit
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.2g}"


def size(value: int | float | None) -> str:
    """Bytes.

    >>> size(512), size(1_536), size(None)
    ('512 B', '1.5 KiB', '–')
    """
    if value is None:
        return DASH
    scaled, unit = float(value), 0
    while scaled >= 1024 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / 1024, unit + 1
    return f"{scaled:.{0 if not unit or scaled >= 100 else 1}f} {_UNITS[unit]}"


def span(seconds: float | None) -> str:
    """A length of time.

    >>> span(0.0123), span(5_400), span(None), span(0)
    ('12ms', '1h30m', '–', '0s')
    """
    if seconds is None:
        return DASH
    if 0 < seconds < 0.001:
        return "<1ms"
    return spell_roughly(round(seconds * 1e6))


def clock(instant: datetime) -> str:
    """An instant in UTC, to the second.

    >>> clock(datetime(2030, 1, 1, 12, tzinfo=UTC))
    '2030-01-01 12:00:00 UTC'
    """
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def pretty(value: Any) -> str:
    """Plain data as people read it."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def cell(value: Any) -> str:
    """A value of an SQL answer."""
    if value is None:
        return DASH
    if isinstance(value, bytes):
        return value[:100].hex() + ("…" if len(value) > 100 else "")
    text = str(value)
    return text if len(text) <= 500 else f"{text[:500]}…"
