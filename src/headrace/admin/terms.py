"""The grammar of filters: from text to terms.

::

    filter  = term*                    all of them must hold
    term    = ["-"] field op value     "-" turns it around
            | ["-"] word               somewhere in a job's names
    op      = ":" "=" "!=" "~" ">" ">=" "<" "<="
    value   = word | "in quotes" | value,value
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from msgspec import Struct

from headrace.errors import ConfigError
from headrace.text import shown

FIELDS = ("queue", "task", "tenant", "state", "key", "group", "worker", "reason", "id")
LENGTHS = ("age", "ended")
"""How long ago a job was enqueued, or has ended."""
NUMBERS = ("attempt", "lost", "priority")
ERROR = "error"
INSIDE = ("args.", "header.")
"""Fields within the arguments and headers, whose names are the users' own."""

_LONGEST, _MOST = 2_000, 50
_HEAD = re.compile(r"([a-z]+(?:\.[^\s:=!~<>\"]+)?)(:|=|!=|~|>=|<=|>|<)")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_BARE = re.compile(r'[^\s,"]+')
_ESCAPE = re.compile(r"\\(.)")


class Term(Struct, frozen=True):
    """One condition. A word alone has no field."""

    field: str
    op: str
    values: tuple[str, ...]
    negated: bool = False


def parse_terms(text: str) -> list[Term]:
    """The terms of a filter.

    >>> [(term.field, term.op, term.values) for term in parse_terms('queue:mail,sms age>1h "no card"')]
    [('queue', ':', ('mail', 'sms')), ('age', '>', ('1h',)), ('', '~', ('no card',))]
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise ConfigError(f"filter: expected text of at most {_LONGEST:,} characters, got {shown(text)}")
    terms: list[Term] = []
    at = 0
    while (at := _blank(text, at)) < len(text):
        term, at = _term(text, at)
        terms.append(term)
        if len(terms) > _MOST:
            raise ConfigError(f"filter: expected at most {_MOST} terms")
    return terms


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _term(text: str, at: int) -> tuple[Term, int]:
    negated = text[at] == "-" and at + 1 < len(text)
    at += negated
    head = _HEAD.match(text, at)
    if head is None:
        value, at = _value(text, at)
        return Term("", "~", (value,), negated), at
    field, op = head[1], head[2]
    _check(field, op)
    values: list[str] = []
    at = head.end()
    while True:
        value, at = _value(text, at)
        values.append(value)
        if at >= len(text) or text[at] != ",":
            break
        at += 1
    if len(values) > 1 and op not in (":", "=", "!="):
        raise ConfigError(f"filter: {field}{op} takes one value, got {len(values)}")
    return Term(field, ":" if op == "=" else op, tuple(values), negated), at


def _value(text: str, at: int) -> tuple[str, int]:
    if (quoted := _QUOTED.match(text, at)) is not None:
        return _ESCAPE.sub(r"\1", quoted[1]), quoted.end()
    bare = _BARE.match(text, at)
    if bare is None:
        rest = text[at : at + 20]
        raise ConfigError(f'filter: expected a value at character {at + 1}, got {rest!r}; an empty one is ""')
    return bare[0], bare.end()


def _check(field: str, op: str) -> None:
    if field.startswith(INSIDE) and not field.endswith("."):
        return
    known = (*FIELDS, *LENGTHS, *NUMBERS, ERROR)
    if field not in known:
        close = get_close_matches(field, known, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        fields = f"there are {', '.join(known)}, args.…, header.…; put in quotes what is no field"
        raise ConfigError(f"filter: unknown field {field!r}{meant or ';'} {fields}")
    compares = op in (">", ">=", "<", "<=")
    if field in LENGTHS and not compares:
        raise ConfigError(f"filter: {field} is compared, like {field}>1h; got {field}{op}")
    if compares and (field in FIELDS or field == ERROR):
        raise ConfigError(f"filter: {field} is not compared; write {field}:value or {field}~part, got {field}{op}")
