"""Filters: what a store can select by itself, and what is left to be tested on each job.

A filter tests a job as redaction leaves it. Whoever searches finds nothing out that is not shown to them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import msgspec

from headrace.admin.redaction import Redaction, is_secret, redact, redact_failure
from headrace.admin.terms import FIELDS, INSIDE, LENGTHS, NUMBERS, Term, parse_terms
from headrace.core.durations import micros
from headrace.core.headers import read_headers
from headrace.core.ids import parse_id
from headrace.core.names import check_name
from headrace.errors import ConfigError, InvalidJob
from headrace.payloads.codec import Envelope
from headrace.seam.records import JobKey, Record, Selector
from headrace.text import shown
from headrace.types import JobState
from headrace.worker.failures import failures

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_STATES: dict[str, frozenset[JobState]] = {
    **{state.value: frozenset({state}) for state in JobState},
    "dead": frozenset({JobState.FAILED}),
    "due": frozenset({JobState.AVAILABLE}),
    "scheduled": frozenset({JobState.AVAILABLE}),
    "retrying": frozenset({JobState.AVAILABLE}),
    "waiting": frozenset({JobState.AVAILABLE, JobState.PAUSED}),
    "live": frozenset(state for state in JobState if not state.terminal),
    "ended": frozenset(state for state in JobState if state.terminal),
}
_ALL = frozenset(JobState)
_WORDS = ("queue", "task", "tenant", "key", "group", "worker", "reason")


class Subject:
    """A job that is tested: its record, the store's clock, and what is inside its cells, read when it is asked for, as
    redaction leaves it."""

    def __init__(self, record: Record, now: int, envelope: Envelope, redaction: Redaction = Redaction.NOTHING) -> None:
        self.record = record
        self.now = now
        self._envelope = envelope
        self._redaction = redaction

    @cached_property
    def args(self) -> Any:
        record = self.record
        args = self._envelope.readable(record.cells.get("parameters"), "parameters", record.id, record.tenant)
        return redact(args, self._redaction)

    @cached_property
    def headers(self) -> Any:
        return redact(read_headers(self.record.headers), self._redaction)

    @cached_property
    def errors(self) -> list[str]:
        kept = (redact_failure(one, self._redaction) for one in failures(self.record.error))
        return [f"{one.type}: {one.message}" for one in kept]


Test = Callable[[Subject], bool]


class Filter(msgspec.Struct, frozen=True):
    """Which jobs are meant, from text such as ``queue:mail state:dead args.user=7 age>1h``.

    >>> parse_filter("queue:mail state:dead age>1h").selector.queue
    'mail'
    """

    text: str
    selector: Selector
    """What the store selects by itself."""
    tests: tuple[Test, ...] = ()
    """What each job that it finds has to pass."""
    want: frozenset[str] = frozenset()
    """What has to be fetched for that."""
    redaction: Redaction = Redaction.NOTHING
    """What whoever searches may see."""

    def passes(self, subject: Subject) -> bool:
        """Whether a job that the store has selected is meant."""
        return all(test(subject) for test in self.tests)


def parse_filter(text: str, redaction: Redaction = Redaction.NOTHING) -> Filter:
    """The filter that a person has written, for who sees as much as ``redaction`` leaves. Raises ``ConfigError``, which
    says what is wrong with it."""
    terms = parse_terms(text)
    _check_seen(terms, redaction)
    narrow: dict[str, Any] = {}
    tests: list[Test] = []
    states = _ALL
    want: set[str] = set()
    for term in terms:
        if term.field == "state":
            tests += _state_tests(term)
            states &= _states(term)
        elif not _narrows(term, narrow):
            tests.append(_turned(_test(term), negated=term.negated != (term.op == "!=")))
            want |= _wanted(term)
    _narrow_by_key(narrow, tests, terms)
    if states != _ALL:
        narrow["states"] = states
    return Filter(text, Selector(**narrow), tuple(tests), frozenset(want), redaction)


def _check_seen(terms: Iterable[Term], redaction: Redaction) -> None:
    """A value that is hidden passes no useful test, so asking for one is a mistake."""
    for term in terms:
        hidden = redaction is Redaction.ALL or any(map(is_secret, term.field.split(".")[1:]))
        if term.field.startswith(INSIDE) and redaction is not Redaction.NOTHING and hidden:
            raise ConfigError(
                f"filter: {term.field}: expected a field whose value is shown, got one that redaction hides "
                f"({redaction.value!r}); filter by something else, or show more: Admin(redaction=…), http.redaction"
            )


def _narrows(term: Term, narrow: dict[str, Any]) -> bool:
    """Whether the store selects by this term itself; then it is noted in ``narrow``."""
    if term.negated or term.op not in (":", ">", ">="):
        return False
    name, value = term.field, term.values[0]
    if name == "id":
        narrow["ids"] = [_id(one) for one in term.values]
        return True
    plain = len(term.values) == 1 and "*" not in value and name not in narrow
    if name in ("queue", "task", "tenant", "reason") and plain:
        narrow[name] = _name(value, name, empty=name in ("tenant", "reason"))
        return True
    if name == "age" and "older_than" not in narrow:
        narrow["older_than"] = _length(value, "age")
        return True
    return False


def _narrow_by_key(narrow: dict[str, Any], tests: list[Test], terms: Iterable[Term]) -> None:
    """A key with its queue leads to one job, without a search."""
    keys = [term for term in terms if term.field == "key" and term.op == ":" and not term.negated]
    if len(keys) == 1 and "queue" in narrow and "ids" not in narrow and not any("*" in one for one in keys[0].values):
        narrow["keys"] = [JobKey(narrow["queue"], _name(one, "key", empty=True)) for one in keys[0].values]


def _name(value: str, what: str, *, empty: bool) -> str:
    try:
        return check_name(value, what, empty=empty)
    except InvalidJob as error:
        raise ConfigError(f"filter: {error}") from None


def _id(value: str) -> bytes:
    try:
        return parse_id(value)
    except InvalidJob as error:
        raise ConfigError(f"filter: {error}") from None


def _length(value: str, name: str) -> int:
    return micros(f"{value}s" if value.replace(".", "", 1).isdecimal() else value, f"filter: {name}")


def _states(term: Term) -> frozenset[JobState]:
    if term.op == "~":
        raise ConfigError(f"filter: expected state:{'|'.join(_STATES)}, got state~{term.values[0]}")
    if unknown := [value for value in term.values if value not in _STATES]:
        raise ConfigError(f"filter: state: expected one of {', '.join(_STATES)}, got {unknown[0]!r}")
    if term.negated == (term.op == "!="):
        return frozenset().union(*(_STATES[value] for value in term.values))
    return _ALL.difference(*(_STATES[value] for value in term.values if value not in _VIEWS))


def _scheduled(subject: Subject) -> bool:
    record = subject.record
    return record.state is JobState.AVAILABLE and record.run_at > subject.now


def _due(subject: Subject) -> bool:
    record = subject.record
    return record.state is JobState.AVAILABLE and record.run_at <= subject.now


def _retrying(subject: Subject) -> bool:
    return subject.record.state is JobState.AVAILABLE and subject.record.attempt > 0


_VIEWS: dict[str, Test] = {"due": _due, "scheduled": _scheduled, "retrying": _retrying}
"""Words for jobs that are ``available``, and more than that."""


def _state_tests(term: Term) -> list[Test]:
    values = term.values
    if not any(value in _VIEWS for value in values):
        return []

    def test(subject: Subject) -> bool:
        state = subject.record.state
        return any(_VIEWS[value](subject) if value in _VIEWS else state in _STATES[value] for value in values)

    return [_turned(test, negated=term.negated != (term.op == "!="))]


def _turned(test: Test, *, negated: bool) -> Test:
    return (lambda subject: not test(subject)) if negated else test


def _wanted(term: Term) -> set[str]:
    if term.field.startswith("args."):
        return {"parameters"}
    return {"error"} if term.field == "error" else set()


def _test(term: Term) -> Test:
    name, op, value = term.field, term.op, term.values[0]
    if not name:
        return _word(value)
    if name in LENGTHS:
        return _ago(name, op, _length(value, name))
    if name in NUMBERS:
        return _number(term)
    if name.startswith(INSIDE):
        return _inside(term)
    if name == "error":
        return _error(term)
    assert name in FIELDS
    return _text(term)


def _word(word: str) -> Test:
    low = word.casefold()

    def test(subject: Subject) -> bool:
        record = subject.record
        names = (getattr(record, name) or "" for name in _WORDS)
        return any(low in name.casefold() for name in names) or record.id.hex().startswith(low.replace("-", ""))

    return test


def _text(term: Term) -> Test:
    name = term.field
    if name == "id":
        ids = {_id(value) for value in term.values}
        return lambda subject: subject.record.id in ids
    return lambda subject: _matches(getattr(subject.record, name) or "", term)


def _matches(text: str, term: Term) -> bool:
    if term.op == "~":
        return term.values[0].casefold() in text.casefold()
    return any(fnmatchcase(text, value.replace("[", "[[]").replace("?", "[?]")) if "*" in value else text == value
               for value in term.values)  # fmt: skip


def _ago(name: str, op: str, length: int) -> Test:
    compare = _COMPARE[op]

    def test(subject: Subject) -> bool:
        record = subject.record
        instant = record.enqueued_at if name == "age" else record.finished_at
        return instant is not None and compare(subject.now - instant, length)

    return test


def _number(term: Term) -> Test:
    name, op = term.field, term.op
    try:
        numbers = [int(value) for value in term.values]
    except ValueError:
        raise ConfigError(f"filter: {name}: expected a whole number, got {shown(term.values[0])}") from None
    if op in _COMPARE:
        compare = _COMPARE[op]
        return lambda subject: compare(getattr(subject.record, name), numbers[0])
    return lambda subject: getattr(subject.record, name) in numbers


def _error(term: Term) -> Test:
    def test(subject: Subject) -> bool:
        part = term.values[0].casefold()
        return any(part in text.casefold() for text in subject.errors)

    return test


def _inside(term: Term) -> Test:
    kind, _, path = term.field.partition(".")
    parts = path.split(".") if kind == "args" else [path]

    def test(subject: Subject) -> bool:
        found = _at(subject.args if kind == "args" else subject.headers, parts)
        return found is not None and any(_is(found, term.op, value) for value in term.values)

    return test


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and len(part) < 10 and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _is(found: Any, op: str, wanted: str) -> bool:
    """Whether a value of the arguments is as wanted. Text that looks like a number is compared as one with numbers."""
    text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    if op == "~":
        return wanted.casefold() in text.casefold()
    if op in _COMPARE:
        number = _as_number(wanted)
        if isinstance(found, int | float) and not isinstance(found, bool) and number is not None:
            return _COMPARE[op](found, number)
        return isinstance(found, str) and _COMPARE[op](found, wanted)
    if isinstance(found, int | float) and not isinstance(found, bool) and (number := _as_number(wanted)) is not None:
        return bool(found == number)
    return fnmatchcase(text, wanted.replace("[", "[[]").replace("?", "[?]")) if "*" in wanted else text == wanted


def _as_number(text: str) -> float | int | None:
    try:
        return int(text) if text.lstrip("-").isdecimal() and len(text) < 100 else float(text)
    except ValueError:
        return None
