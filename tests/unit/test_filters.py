"""The grammar of filters, and what each term means for a job."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import JobState
from headrace.admin.filters import Subject, parse_filter
from headrace.admin.redaction import HIDDEN, Redaction, redact
from headrace.errors import ConfigError
from headrace.payloads.codec import JSON, Envelope
from headrace.seam.records import JobKey, Record
from headrace.types import Failure

NOW = 1_800_000_000_000_000
HOUR = 3_600_000_000
ENVELOPE = Envelope(max_size=10_000, compress_over=None)
ID = bytes(range(16))


def job(args: Any = None, **given: Any) -> Record:
    cells = {} if args is None else {"parameters": ENVELOPE.wrap(msgspec.json.encode(args), JSON, "parameters")}
    fields = {"id": ID, "queue": "mail", "task": "welcome", "state": JobState.AVAILABLE, "enqueued_at": NOW - HOUR}
    return Record(**(fields | {"cells": cells} | given))


def passes(text: str, record: Record) -> bool:
    """Whether a job passes, by the store's selection (as far as it is simple) and by the tests."""
    wanted = parse_filter(text)
    selector = wanted.selector
    selected = (
        all(getattr(selector, name) in (None, getattr(record, name)) for name in ("queue", "task", "tenant", "reason"))
        and (selector.states is None or record.state in selector.states)
        and (selector.ids is None or record.id in selector.ids)
        and (selector.older_than is None or NOW - record.enqueued_at >= selector.older_than)
    )
    return selected and wanted.passes(Subject(record, NOW, ENVELOPE))


FAILED = job(
    {"user": 7, "to": {"mail": "ada@example.org"}, "tags": ["new", "vip"], "big": 2**60, "ok": True, "ratio": 0.5},
    state=JobState.FAILED,
    tenant="acme",
    key="user-7",
    reason="retries exhausted",
    attempt=3,
    priority=-5,
    finished_at=NOW - HOUR // 2,
    headers=msgspec.msgpack.encode({"trace": "abc"}),
    error=msgspec.msgpack.encode([Failure("TimeoutError", "no answer from Smtp")]),
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "queue:mail",
        "queue=mail",
        "queue:sms,mail",
        "queue:m*",
        "queue~AI",
        "-queue:sms",
        "queue!=sms",
        "task:welcome tenant:acme",
        "state:dead",
        "state:failed,completed",
        "state:ended",
        "-state:live",
        "state!=scheduled",
        "-state:retrying",
        "key:user-7",
        "key:user-*",
        'reason:"retries exhausted"',
        "reason~EXHAUSTED",
        "attempt:3",
        "attempt=2,3",
        "attempt>2",
        "attempt!=2",
        "priority<0",
        "priority<=-5",
        "lost:0",
        "age>59m",
        "age<61m",
        "age<3601",
        "ended<31m",
        "ended>=30m",
        "args.user=7",
        "args.user:7",
        "args.user>6.5",
        "args.user!=8",
        "args.to.mail~EXAMPLE",
        "args.to.mail:*@example.org",
        "args.tags.1=vip",
        "args.tags~vip",
        "args.big=1152921504606846976",
        "args.ok=true",
        "args.ratio<1",
        "header.trace:abc",
        "error~timeout",
        "error~SMTP",
        "welcome",
        "acme EXHAUSTED",
        "user-7",
        "00010203-0405",
        "id:00010203-0405-0607-0809-0a0b0c0d0e0f",
        "-sms",
    ],
)
def test_what_passes(text: str) -> None:
    assert passes(text, FAILED)
    assert not text or not passes(f"{text} queue:elsewhere", FAILED)


@pytest.mark.parametrize(
    "text",
    [
        "queue:sms",
        "-queue:mail",
        "-queue:m*",
        "queue!=mail",
        "task:Welcome",
        "state:live",
        "state:scheduled",
        "-state:dead",
        "state:dead state:completed",
        "tenant:",
        "attempt<3",
        "age>61m",
        "ended<1m",
        "-args.user=7",
        "args.user=70",
        "args.user>seven",
        "args.none=7",
        "args.tags.9=vip",
        "args.to.mail.deeper=1",
        "args.ok=1",
        "header.trace:ab",
        "error~card",
        "nowhere",
        "id:00010203-0405-0607-0809-0a0b0c0d0eff",
    ],
)
def test_what_does_not(text: str) -> None:
    assert not passes(text.replace("tenant:", 'tenant:""'), FAILED)


def test_views_of_available_jobs() -> None:
    later, again = job(run_at=NOW + 1), job(attempt=1, run_at=NOW - 1)
    assert [passes("state:scheduled", one) for one in (later, again)] == [True, False]
    assert [passes("state:due", one) for one in (later, again)] == [False, True]
    assert [passes("-state:due state:live", one) for one in (later, again)] == [True, False]
    assert [passes("state:retrying", one) for one in (later, again)] == [False, True]
    assert [passes("state:retrying,scheduled", one) for one in (later, again)] == [True, True]
    assert [passes("state:available", one) for one in (later, again)] == [True, True]
    assert [passes("-state:scheduled state:waiting", one) for one in (later, again)] == [False, True]


def test_the_store_selects_what_it_can() -> None:
    wanted = parse_filter('queue:mail state:dead task:welcome tenant:"" reason:lost age>1h')
    selector = wanted.selector
    assert (selector.queue, selector.task, selector.tenant, selector.reason) == ("mail", "welcome", "", "lost")
    assert (selector.states, selector.older_than) == (frozenset({JobState.FAILED}), HOUR)
    assert not wanted.tests
    assert parse_filter("args.user=7 error~x").want == {"parameters", "error"}
    assert parse_filter("queue:mail key:a,b").selector.keys == [JobKey("mail", "a"), JobKey("mail", "b")]
    assert parse_filter("queue:a queue:b").tests, "two names at once: nothing is lost, and nothing passes"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queu:mail", "did you mean 'queue'"),
        ("colour:red", "unknown field 'colour'"),
        ("state:sleeping", "expected one of available"),
        ("state~dead", "expected state:"),
        ("age:1h", "age is compared, like age>1h"),
        ("age>soon", "expected a duration"),
        ("queue>mail", "queue is not compared"),
        ("attempt>x", "expected a whole number"),
        ("attempt>1,2", "takes one value"),
        ("queue:", "expected a value at character 7"),
        ('queue:"mail', "expected a value"),
        ("id:7", "id"),
        ("x" * 2_001, "at most 2,000 characters"),
        ("a " * 51, "at most 50 terms"),
        ("queue:a\0b", "queue"),
        ("queue:" + "x" * 1_100, "queue"),
    ],
)
def test_what_is_wrong_is_said(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_filter(text)


@given(st.text(max_size=200))
def test_any_text_is_a_filter_or_a_clear_error(text: str) -> None:
    passed: bool | None = None
    with suppress(ConfigError):
        passed = parse_filter(text).passes(Subject(FAILED, NOW, ENVELOPE))
    assert passed in (True, False, None)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    )
)
def test_redaction_of_all_shows_no_value(value: Any) -> None:
    shown = redact({"it": value, "password": value}, Redaction.ALL)
    assert shown["password"] == HIDDEN
    assert set(_leaves(shown)) <= {None, HIDDEN, "‹int›"} | {f"‹text, {n}›" for n in range(6)}
    assert redact(value, Redaction.NOTHING) == value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in _leaves(inner)]
    return [leaf for inner in value for leaf in _leaves(inner)] if isinstance(value, list) else [value]
