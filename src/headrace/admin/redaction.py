"""Redaction: what is shown of payloads and errors to people who only look after jobs."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from headrace.api.info import JobInfo
from headrace.types import Failure

_SECRET = re.compile(
    r"(?i)pass(word|wd|phrase)?|pwd|secret|token|api[_-]?key|auth|credential|cookie|session|card|iban|ssn|private"
)
HIDDEN = "•••"
_DEEPEST = 20


class Redaction(StrEnum):
    """How much of arguments, results, headers and errors is shown. Filters test what is shown.

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
    """Names are shown, and the kinds of their values; of errors their types, and of progress no words."""


def redact(value: Any, how: Redaction) -> Any:
    """The value as it may be shown."""
    return value if how is Redaction.NOTHING else _redacted(value, how, 0)


def is_secret(name: str) -> bool:
    """Whether the value of that name is hidden from all who do not see everything.

    >>> is_secret("api_key"), is_secret("user")
    (True, False)
    """
    return _SECRET.search(name) is not None


def redact_failure(failure: Failure, how: Redaction) -> Failure:
    """A failed attempt as it may be shown: messages and tracebacks may quote any value."""
    if how is not Redaction.ALL:
        return failure
    return replace(failure, message=HIDDEN, traceback=failure.traceback and HIDDEN)


def redact_job(job: JobInfo, how: Redaction) -> JobInfo:
    """A job as it may be shown."""
    values: dict[str, Any] = {name: redact(getattr(job, name), how) for name in ("args", "result", "headers")}
    if how is Redaction.ALL and job.progress is not None:
        values["progress"] = replace(job.progress, note="")
    return replace(job, failures=[redact_failure(one, how) for one in job.failures], **values)


def _redacted(value: Any, how: Redaction, depth: int) -> Any:
    if depth > _DEEPEST:
        return HIDDEN
    if isinstance(value, dict):
        return {
            name: HIDDEN if is_secret(str(name)) else _redacted(inner, how, depth + 1) for name, inner in value.items()
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
