"""Text as it is stored, which need not be text."""

from __future__ import annotations


def readable(stored: bytes) -> str:
    """Stored bytes as text; what is no UTF-8 is written as escapes.

    >>> readable(b"caf\\xff")
    'caf\\\\xff'
    """
    return stored.decode("utf-8", "backslashreplace")
