"""Which state follows."""

from __future__ import annotations

from datetime import datetime
from random import Random
from typing import Any

import msgspec
import pytest

from headrace import (
    Again,
    Cancelled,
    Done,
    Fail,
    JsonSerde,
    NewJob,
    Patch,
    Paused,
    Retry,
    Sections,
    exponential,
    immediate,
)
from headrace.core.clock import ManualClock
from headrace.core.config import PayloadSettings
from headrace.core.ids import IdMaker
from headrace.errors import Stop, UnknownTask
from headrace.payloads.pack import Packer
from headrace.seam.instants import to_datetime
from headrace.seam.records import Leased, Limits, Settlement
from headrace.types import JobState
from headrace.worker.failures import failures
from headrace.worker.handler import Handler
from headrace.worker.judge import Judge, unwrap
from headrace.worker.retry import RetryPolicy

CLOCK = ManualClock()
PACKER = Packer(PayloadSettings(max_size=1_000), Limits(), IdMaker(CLOCK, Random(1)))
JUDGE = Judge("holder", PACKER, CLOCK, Random(1))
HOUR = 3_600_000_000


def leased(**given: Any) -> Leased:
    return Leased(id=b"i" * 16, queue="q", task="t", cells={}, epoch=7, **given)


def handler(retry: RetryPolicy | None = None, result_ttl: int = HOUR, result: Any = Any) -> Handler:
    return Handler(
        task="t",
        load=lambda job: None,
        retry=retry or exponential(3, base="10s", jitter=False),
        result_serde=JsonSerde[Any](result),
        result_ttl=result_ttl,
    )


def settle(outcome: Any, job: Leased | None = None, **options: Any) -> Settlement:
    return JUDGE.settle(job or leased(), handler(**options), outcome)


def test_every_settlement_is_fenced() -> None:
    """Rule 3: id, epoch and holder, whatever the outcome."""
    job = leased()
    settlements = [settle(outcome) for outcome in (Done(), Retry(), Again(), Paused(), Fail(), Cancelled())]
    settlements += [
        JUDGE.release(job.id, job.epoch),
        JUDGE.cancelled(job),
        JUDGE.raised(job, immediate(), ValueError()),
    ]
    settlements += [JUDGE.refuse(job, ValueError(), "x"), JUDGE.done(job, handler(), 1)]
    assert {(s.id, s.epoch, s.holder) for s in settlements} == {(b"i" * 16, 7, "holder")}


class TestDone:
    def test_with_a_result(self) -> None:
        settlement = settle(Done({"a": 1}))
        assert (settlement.state, settlement.result_ttl, settlement.failed_attempt) == (JobState.COMPLETED, HOUR, False)
        assert PACKER.envelope.decode(settlement.result or b"", JsonSerde[Any](), "x") == {"a": 1}

    def test_whose_ttl_counts(self) -> None:
        """The outcome's, else the job's, else the task's."""
        assert settle(Done(1)).result_ttl == HOUR
        assert settle(Done(1), leased(result_ttl=5)).result_ttl == 5
        assert settle(Done(1, result_ttl="1s"), leased(result_ttl=5)).result_ttl == 1_000_000
        assert settle(Done(1, result_ttl=0)).result_ttl == 0

    def test_nothing_is_kept_without_a_ttl(self) -> None:
        assert settle(Done(object()), leased(result_ttl=0)).result is None
        assert settle(Done("kept", result_ttl="1s"), leased(result_ttl=0)).result is not None

    def test_the_short_way_and_the_long_way_agree(self) -> None:
        for value in (None, 1, "x", {"a": [1]}, object()):
            assert JUDGE.done(leased(), handler(), value).state is settle(Done(value)).state


class TestRetry:
    def test_waits_as_the_policy_says(self) -> None:
        delays = [JUDGE.raised(leased(attempt=n), handler().retry, ValueError()).delay for n in range(2)]
        assert delays == [10_000_000, 20_000_000]

    def test_or_as_the_outcome_says(self) -> None:
        assert settle(Retry("5m")).delay == 300_000_000
        assert settle(Retry(0)).delay == 0
        assert settle(Retry()).delay == 10_000_000

    def test_until_the_last_attempt(self) -> None:
        states = [settle(Retry(error="x"), leased(attempt=n)).state for n in range(3)]
        assert states == [JobState.AVAILABLE, JobState.AVAILABLE, JobState.FAILED]
        assert settle(Retry(), leased(attempt=2)).reason == "retries exhausted"

    def test_the_job_s_own_limit_counts(self) -> None:
        assert settle(Retry(), leased(max_attempts=1)).state is JobState.FAILED
        assert settle(Retry(), leased(attempt=50, max_attempts=99)).state is JobState.AVAILABLE

    def test_is_a_failed_attempt(self) -> None:
        assert settle(Retry()).failed_attempt
        assert settle(Fail()).failed_attempt
        assert not settle(Again()).failed_attempt

    def test_not_after_every_error(self) -> None:
        policy = exponential(5, give_up_on=(KeyError,))
        settlement = JUDGE.raised(leased(), policy, KeyError("x"))
        assert (settlement.state, settlement.reason) == (JobState.FAILED, "not retryable")


class TestErrors:
    def test_are_remembered(self) -> None:
        settlement = JUDGE.raised(leased(attempt=1), immediate(), ValueError("what"))
        [failure] = failures(settlement.error)
        assert (failure.type, failure.message, failure.attempt, failure.at) == ("ValueError", "what", 2, CLOCK.now())
        assert "ValueError: what" in failure.traceback

    def test_only_the_last_twenty(self) -> None:
        error = None
        for n in range(30):
            error = JUDGE.raised(leased(attempt=n, error=error), immediate(99), ValueError(n)).error
        known = failures(error)
        assert [failure.message for failure in known] == [str(n) for n in range(10, 30)]
        assert [bool(failure.traceback) for failure in known] == [False] * 19 + [True]

    def test_older_ones_are_short_so_a_job_that_fails_for_ever_stays_small(self) -> None:
        error = None
        for n in range(100):
            error = JUDGE.raised(leased(attempt=n, error=error), immediate(999), ValueError("x" * 10**5)).error
        known = failures(error)
        assert [len(failure.message) for failure in known] == [201] * 19 + [2_001]
        assert len(error or b"") < 20_000

    def test_say_when_and_where_the_attempt_began(self) -> None:
        judge = Judge("holder", PACKER, CLOCK, Random(1), "web-1")
        for settlement in (
            judge.raised(leased(), immediate(), ValueError("what")),
            judge.settle(leased(), handler(), Fail("no")),
            judge.settle(leased(), handler(), Retry(error="later")),
        ):
            [failure] = failures(settlement.error)
            assert (failure.since, failure.worker) == (leased().epoch, "web-1")

    def test_are_cut(self) -> None:
        error = JUDGE.raised(leased(), immediate(), ValueError("x" * 10**6)).error
        [failure] = failures(error)
        assert len(failure.message) == 2_001
        assert len(failure.traceback) <= 8_000

    @pytest.mark.parametrize("text", ["\ud800", "a\0b", "\x1b[31m", "\U0010ffff"])
    def test_of_any_text(self, text: str) -> None:
        """An error's text is never the reason that the error is lost."""
        for settlement in (
            JUDGE.raised(leased(), immediate(), ValueError(text)),
            JUDGE.refuse(leased(), ValueError(text), "x"),
            settle(Fail(text)),
            settle(Retry(0, text)),
        ):
            assert failures(settlement.error)[0].message

    def test_that_will_not_say_what_they_are(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        [failure] = failures(JUDGE.raised(leased(), immediate(), Mute()).error)
        assert failure.type.endswith("Mute")

    @pytest.mark.parametrize(
        "stored", [b"", b"garbage", b"\x91\x80", b"\x01", b"\x91\x82\xa4type\xa1x", b"\x91\xa1\xff"]
    )
    def test_that_cannot_be_read_any_more(self, stored: bytes) -> None:
        """A damaged error costs its text, not the job."""
        assert failures(stored)[0].type
        settlement = JUDGE.raised(leased(error=stored), immediate(), ValueError("new"))
        assert failures(settlement.error)[-1].message == "new"


class TestOthers:
    def test_again_keeps_attempts_and_forgives_losses(self) -> None:
        settlement = settle(Again("1m"), leased(attempt=3, lost=2))
        assert (settlement.state, settlement.delay, settlement.failed_attempt) == (
            JobState.AVAILABLE,
            60_000_000,
            False,
        )
        assert not settlement.keep_lost

    def test_again_and_retry_at_an_instant(self) -> None:
        """000-30: which may lie in the past."""
        at = to_datetime(CLOCK.now() - HOUR)
        for outcome in (Again(at=at), Retry(at=at)):
            settlement = settle(outcome)
            assert (settlement.state, settlement.run_at) == (JobState.AVAILABLE, CLOCK.now() - HOUR)
        assert settle(Retry(at=at), leased(attempt=2)).state is JobState.FAILED

    def test_paused_keeps_place_and_attempts(self) -> None:
        settlement = settle(Paused(), leased(attempt=3, lost=2))
        assert (settlement.state, settlement.delay, settlement.failed_attempt) == (JobState.PAUSED, None, False)
        assert not settlement.keep_lost

    def test_a_release_keeps_place_and_losses(self) -> None:
        """5.3-16: given back as it was."""
        settlement = JUDGE.release(b"i" * 16, 7)
        assert (settlement.state, settlement.delay, settlement.failed_attempt) == (JobState.AVAILABLE, None, False)
        assert settlement.keep_lost

    def test_cancelled(self) -> None:
        assert (settle(Cancelled("why")).state, settle(Cancelled("why")).reason) == (JobState.CANCELLED, "why")

    def test_fail(self) -> None:
        settlement = settle(Fail("what", "why"))
        assert (settlement.state, settlement.reason) == (JobState.FAILED, "why")
        assert failures(settlement.error)[0].message == "what"

    @pytest.mark.parametrize("kind", [Done, Retry, Again, Paused, Fail, Cancelled])
    def test_patch_and_spawn_come_with_any(self, kind: Any) -> None:
        children = [NewJob(task="a"), NewJob(task="b")]
        patch = Patch(queue="other", priority=3, sections=Sections(blob=b"x", metadata=None))
        settlement = settle(kind(patch=patch, spawn=children))
        assert (settlement.queue, settlement.priority) == ("other", 3)
        assert [row.task for row in settlement.spawn] == ["a", "b"]
        assert settlement.cells is not None
        assert settlement.cells["metadata"] is None

    def test_unwrap(self) -> None:
        assert unwrap(Stop(Again("1s"))) == Again("1s")
        assert unwrap(Stop("x")) is None  # type: ignore[arg-type]
        assert unwrap(ValueError()) is None


BAD_OUTCOMES: list[Any] = [
    Done(object()),
    Done("x" * 2_000),
    Done(float("nan")),
    Done(1, result_ttl="soon"),
    Retry("soon"),
    Again(-1),
    Again(1, at=to_datetime(CLOCK.now())),
    Retry(0, at=to_datetime(CLOCK.now())),
    Again(at=datetime(2030, 1, 1)),
    Again(at="tomorrow"),  # type: ignore[arg-type]
    Done(spawn=["x"]),
    Done(spawn=5),
    Done(spawn=[NewJob(task="")]),
    Done(patch=Patch(priority=10**6)),
    Done(patch=Patch(sections=Sections(blob="x"))),  # type: ignore[arg-type]
    Done(patch=Patch(queue="")),
    Done(patch=Patch(queue="\ud800")),
    Done(patch=Patch(queue=5)),  # type: ignore[arg-type]
    Done(patch="x"),  # type: ignore[arg-type]
    Done(patch=Patch(sections=None)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(BAD_OUTCOMES)))
def test_an_outcome_that_cannot_be_stored_fails_the_job(number: int) -> None:
    """Whatever is wrong with it: there is always a settlement, and it is one that a store can take."""
    settlement = settle(BAD_OUTCOMES[number])
    assert (settlement.state, settlement.reason) == (JobState.FAILED, "outcome cannot be stored")
    assert (settlement.spawn, settlement.queue, settlement.result) == ((), None, None)
    assert failures(settlement.error)[0].message


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (int, "seven", "result of t(…) -> int: expected int, got str"),
        (int, None, "result of t(…) -> int: expected int, got None"),
        (type(None), 7, "result of t(…) -> None: expected None, got int"),
        (list[int], [1, None], "result of t(…) -> list[int]: expected int, got None, at $[1]"),
        (Any, object(), "result of t(…): cannot encode object: objects of type object are not supported; what can be"),
        (str, "x" * 2_000, "result of t(…) -> str: expected at most 1000 bytes, got 2002; keep large data elsewhere"),
    ],
)
def test_a_result_that_cannot_be_stored_is_told_as_a_result(kind: Any, value: Any, said: str) -> None:
    """Both ways: returned, and in an outcome that keeps it although the job does not."""
    returned = JUDGE.done(leased(), handler(result=kind), value)
    kept = JUDGE.settle(leased(result_ttl=0), handler(result=kind), Done(value, result_ttl="1s"))
    for settlement in (returned, kept):
        assert (settlement.state, settlement.reason) == (JobState.FAILED, "outcome cannot be stored")
        assert failures(settlement.error)[0].message.startswith(said)


@pytest.mark.parametrize("reason", ["\ud800", "x" * 10**6, "a\0b", None, 5])
@pytest.mark.parametrize("kind", [Fail, Cancelled])
def test_a_reason_is_made_to_fit(kind: Any, reason: Any) -> None:
    """Text without NUL and lone surrogates, of at most 1,024 bytes, as the records promise to the stores."""
    settlement = settle(kind(reason=reason))
    assert isinstance(settlement.reason, str)
    assert len(settlement.reason.encode()) <= 1_024
    assert "\0" not in settlement.reason


def test_settlements_survive_the_wire() -> None:
    """Flat: a settlement can be encoded as it is."""
    assert msgspec.msgpack.encode(settle(Done({"a": 1}, spawn=[NewJob(task="t")])))


@pytest.mark.parametrize("kind", [ValueError, Fail, Retry])
def test_errors_are_kept_without_the_secrets_of_urls(kind: Any) -> None:
    """What a driver says of its URL must not be read by everybody who may read jobs."""
    text = "cannot reach postgresql://ada:hunter2@db/x?password=hunter3 just now"
    job = leased()
    try:
        raise ValueError(text) from OSError(text)
    except ValueError as error:
        settlement = JUDGE.raised(job, immediate(), error) if kind is ValueError else settle(kind(error=text))
    [failure] = failures(settlement.error)
    assert failure.message == "cannot reach postgresql://***@db/x?password=*** just now"
    assert "hunter" not in failure.traceback
    assert "hunter" not in settle(Fail(reason=text)).reason


def test_a_job_of_an_unknown_task_waits_as_long_again_once_it_is_requeued() -> None:
    """What its dead letter told stays with it."""
    error, states = None, []
    for _ in range(12):
        settlement = JUDGE.unknown(leased(error=error), UnknownTask("nobody knows it"))
        states.append(settlement.state)
        error = settlement.error
    assert states == [JobState.AVAILABLE] * 9 + [JobState.FAILED] + [JobState.AVAILABLE] * 2
    assert [failure.times for failure in failures(error)] == [2]
