"""Redaction: what is shown of payloads to people who only look after jobs."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

_SECRET = re.compile(
    r"(?i)pass(word|wd|phrase)?|pwd|secret|token|api[_-]?key|auth|credential|cookie|session|card|iban|ssn|private"
)
HIDDEN = "•••"
_DEEPEST = 20


class Redaction(StrEnum):
    """How much of arguments, results and headers is shown.

    >>> redact({"user": 7, "token": "x"}, Redaction.SECRETS)
    {'user': 7, 'token': '•••'}
    >>> redact({"user": 7, "tags": ["a", "b"]}, Redaction.ALL)
    {'user': '‹int›', 'tags': ['‹text, 1›', '‹text, 1›']}
    """

    NOTHING = "nothing"
    """Everything is shown."""
    SECRETS = "secrets"
    """Values whose names sound secret are hidden."""
    ALL = "all"
    """Names are shown, and the kinds of their values."""


def redact(value: Any, how: Redaction) -> Any:
    """The value as it may be shown."""
    return value if how is Redaction.NOTHING else _redacted(value, how, 0)


def _redacted(value: Any, how: Redaction, depth: int) -> Any:
    if depth > _DEEPEST:
        return HIDDEN
    if isinstance(value, dict):
        return {
            name: HIDDEN if _SECRET.search(str(name)) else _redacted(inner, how, depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_redacted(inner, how, depth + 1) for inner in value]
    return value if how is Redaction.SECRETS or value is None else _kind(value)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"‹text, {len(value):,}›"
    if isinstance(value, bytes):
        return f"‹bytes, {len(value):,}›"
    return f"‹{type(value).__name__}›"
