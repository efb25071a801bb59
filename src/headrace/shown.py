"""Anything at all, as it may stand in a message."""

from __future__ import annotations

_LONGEST = 80


def shown(value: object) -> str:
    """The value's repr, short, and never an error of its own.

    >>> shown("x" * 200)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    try:
        text = repr(value[: 2 * _LONGEST] if isinstance(value, str | bytes) else value)
    except Exception:
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
