"""Which state follows: a handler's outcome, or its exception, becomes a settlement."""

from __future__ import annotations

import traceback
from datetime import datetime
from random import Random
from types import AsyncGeneratorType, GeneratorType
from typing import Any

import msgspec

from headrace.core.clock import Clock
from headrace.core.durations import LONGEST, micros
from headrace.core.names import check_queue
from headrace.errors import CodecError, ConfigError, InvalidJob, PayloadError, PayloadTooLarge, Stop, UnknownTask
from headrace.payloads.codec import annotation, worded
from headrace.payloads.pack import Packer
from headrace.seam.records import JobId, Leased, Settlement
from headrace.text import shown, without_secrets
from headrace.types import OUTCOMES, Again, Cancelled, Done, Fail, Failure, JobState, Outcome, Patch, Paused, Retry
from headrace.worker.handler import Handler
from headrace.worker.retry import RetryPolicy, exponential

_FAILURES_KEPT = 5
_MESSAGE_KEPT = 2_000
_REASON_KEPT = 1_024
_TRACEBACK_KEPT = 8_000
_DECODER = msgspec.msgpack.Decoder(list[Failure])
_ENCODER = msgspec.msgpack.Encoder()

EXHAUSTED = "retries exhausted"
UNSTORABLE = "outcome cannot be stored"
GAVE_UP = "not retryable"
_LAZY = (GeneratorType, AsyncGeneratorType)
_POLICY_FAILED = "retry policy failed"
_NOBODY_KNOWS = "no worker knows its task"
_UNKNOWN = exponential(10, base="10s", cap="10m")
"""How often, and for how long, a job waits for a worker that knows its task."""


class Judge:
    """Knows the rules of one worker: its holder, its randomness, and how to pack what outcomes carry."""

    def __init__(self, holder: str, packer: Packer, clock: Clock, rng: Random) -> None:
        self._holder = holder
        self._packer = packer
        self._clock = clock
        self._rng = rng

    def done(self, leased: Leased, handler: Handler, value: Any) -> Settlement:
        """The handler returned a plain value; the common case, kept short."""
        ttl = handler.result_ttl if leased.result_ttl is None else leased.result_ttl
        result = None
        if ttl > 0:
            try:
                result = self._sealed(handler, value)
            except Exception as error:
                return self._unstorable(leased, error)
        elif isinstance(value, _LAZY):
            lazy = f"result of {handler.task}(…): a generator, of which nothing has run; return a list"
            return self._unstorable(leased, CodecError(lazy))
        return Settlement(
            leased.id, leased.epoch, self._holder, JobState.COMPLETED, result=result, result_ttl=ttl
        )  # fmt: skip

    def settle(self, leased: Leased, handler: Handler, outcome: Outcome) -> Settlement:
        """The handler returned, or stopped with, an outcome."""
        try:
            return self._settle(leased, handler, outcome)
        except Exception as error:
            return self._unstorable(leased, error)

    def raised(self, leased: Leased, retry: RetryPolicy, error: BaseException) -> Settlement:
        """The handler raised: another attempt, or the dead letters."""
        failure = _failure(error, leased.attempt + 1, self._clock.now())
        try:
            if not retry.allows(error):
                return self._fail(leased, failure, GAVE_UP)
            return self._attempt(leased, retry, failure, None)
        except BaseException as problem:  # of a policy, or an exception class, of the user's own making
            also = _failure(problem, leased.attempt + 1, self._clock.now())
            return self._fail(leased, failure, _POLICY_FAILED, also)

    def unknown(self, leased: Leased, error: UnknownTask) -> Settlement:
        """This worker has no handler for it; one that does may be on its way. Given back for a while, which uses up no
        attempt: how often so far is kept with the error. Then to the dead letters; requeued, it waits anew."""
        before = failures(leased.error)
        times = 1 + before.pop().times if before and before[-1].type == type(error).__qualname__ else 1
        times = 1 if times > _UNKNOWN.max_attempts else times
        now = msgspec.structs.replace(_failure(error, leased.attempt, self._clock.now()), times=times)
        settlement = self.release(leased, delay=_UNKNOWN.delay(times, self._rng), unbegun=not leased.begun)
        if times >= _UNKNOWN.max_attempts:
            settlement = msgspec.structs.replace(settlement, state=JobState.FAILED, delay=0, reason=_NOBODY_KNOWS)
        return msgspec.structs.replace(settlement, error=_kept([*before, now]))

    def refuse(self, leased: Leased, error: BaseException, reason: str) -> Settlement:
        """The job cannot be run at all: to the dead letters, whatever attempts are left."""
        return self._fail(leased, _failure(error, leased.attempt + 1, self._clock.now()), reason)

    def refused(self, settlement: Settlement, error: BaseException) -> Settlement:
        """What to settle instead of an outcome that the store will not take."""
        return Settlement(
            settlement.id,
            settlement.epoch,
            self._holder,
            JobState.FAILED,
            failed_attempt=True,
            error=_remember(None, _failure(error, 0, self._clock.now())),
            reason=UNSTORABLE,
        )

    def release(
        self, leased: Leased, *, delay: int | None = None, keep_lost: bool = True, unbegun: bool = False
    ) -> Settlement:
        """Given back unfinished: available again, in its old place unless a delay is given, no attempt counted."""
        return self.give_back(leased.id, leased.epoch, delay=delay, keep_lost=keep_lost, unbegun=unbegun)

    def give_back(
        self, job_id: JobId, epoch: int, *, delay: int | None = None, keep_lost: bool = True, unbegun: bool = False
    ) -> Settlement:
        """The same for a job of which only the lease is known."""
        state = JobState.AVAILABLE
        return Settlement(job_id, epoch, self._holder, state, delay=delay, keep_lost=keep_lost, unbegun=unbegun)

    def cancelled(self, leased: Leased, reason: str = "cancelled") -> Settlement:
        """A cancellation that was asked for has been carried out."""
        return Settlement(leased.id, leased.epoch, self._holder, JobState.CANCELLED, reason=reason)

    def _settle(self, leased: Leased, handler: Handler, outcome: Outcome) -> Settlement:
        match outcome:
            case Done(result, result_ttl):
                base = self.done(leased, handler, result)
                if result_ttl is not None and base.state is JobState.COMPLETED:
                    base = self._with_ttl(base, leased, handler, result, micros(result_ttl, "result_ttl"))
            case Again(after):
                base = self.release(leased, delay=micros(after, "after"), keep_lost=False)
                base = self._at(base, outcome.at, bool(after))
            case Paused():
                base = Settlement(leased.id, leased.epoch, self._holder, JobState.PAUSED, delay=None)
            case Cancelled(reason):
                base = self.cancelled(leased, _reason(reason))
            case Fail(error, reason):
                failure = Failure("Fail", _cut(error), leased.attempt + 1, self._clock.now())
                base = self._fail(leased, failure, _reason(reason))
            case Retry(after, error):
                failure = Failure("Retry", _cut(error), leased.attempt + 1, self._clock.now())
                base = self._attempt(leased, handler.retry, failure, None if after is None else micros(after, "after"))
                base = self._at(base, outcome.at, after is not None)
        if outcome.patch is None and not outcome.spawn:
            return base
        patch = outcome.patch
        if not isinstance(patch, Patch | None):
            raise InvalidJob(f"patch: expected a Patch, got {type(patch).__name__}")
        return msgspec.structs.replace(
            base,
            queue=None if patch is None or patch.queue is None else check_queue(patch.queue, "patch: queue"),
            priority=None if patch is None or patch.priority is None else self._packer.priority(patch.priority),
            cells=self._packer.patch(patch) if patch else None,
            spawn=[self._packer.pack(job) for job in outcome.spawn],
        )

    def _at(self, base: Settlement, at: datetime | None, delayed: bool) -> Settlement:
        """At an instant, if one is given, and if it is not the job's end."""
        if at is None:
            return base
        if delayed:
            raise InvalidJob("expected after or at, got both")
        return msgspec.structs.replace(base, run_at=self._packer.instant(at, "at"))

    def _with_ttl(self, base: Settlement, leased: Leased, handler: Handler, value: Any, ttl: int) -> Settlement:
        result = base.result
        if result is None and ttl > 0:
            result = self._sealed(handler, value)
        return msgspec.structs.replace(base, result=result, result_ttl=ttl)

    def _sealed(self, handler: Handler, value: Any) -> bytes | None:
        try:
            return self._packer.seal_result(value, handler.result_serde)
        except PayloadError as error:
            arrow = f" -> {kind}" if (kind := annotation(handler.result_serde)) else ""
            wrong = PayloadTooLarge if isinstance(error, PayloadTooLarge) else CodecError
            raise wrong(f"result of {handler.task}(…){arrow}: {worded(error).removeprefix('result: ')}") from error

    def _attempt(self, leased: Leased, retry: RetryPolicy, failure: Failure, after: int | None) -> Settlement:
        attempt = leased.attempt + 1
        if attempt >= (leased.max_attempts or retry.max_attempts):
            return self._fail(leased, failure, EXHAUSTED)
        return Settlement(
            leased.id,
            leased.epoch,
            self._holder,
            JobState.AVAILABLE,
            delay=_checked(retry.delay(attempt, self._rng)) if after is None else after,
            failed_attempt=True,
            error=_remember(leased.error, failure),
        )

    def _fail(self, leased: Leased, failure: Failure, reason: str, *more: Failure) -> Settlement:
        return Settlement(
            leased.id,
            leased.epoch,
            self._holder,
            JobState.FAILED,
            failed_attempt=True,
            error=_remember(leased.error, failure, *more),
            reason=reason,
        )

    def _unstorable(self, leased: Leased, error: BaseException) -> Settlement:
        """The work is done but its outcome cannot be stored; doing it again would not help."""
        return self.refuse(leased, error, UNSTORABLE)


def failures(error: bytes | None) -> list[Failure]:
    """What a stored error tells of the last attempts, oldest first."""
    if error is None:
        return []
    try:
        return _DECODER.decode(error)
    except Exception:  # not MessagePack, not text, not even bytes
        return [Failure("Unreadable", "the stored error cannot be decoded")]


def unwrap(error: BaseException) -> Outcome | None:
    """The outcome in a ``Stop``."""
    return error.outcome if isinstance(error, Stop) and isinstance(error.outcome, OUTCOMES) else None


def _remember(before: bytes | None, *now: Failure) -> bytes:
    return _kept([*failures(before), *now])


def _kept(told: list[Failure]) -> bytes:
    """The last few, and the traceback of the very last."""
    last = len(told) - 1
    kept = [one if i == last else msgspec.structs.replace(one, traceback="") for i, one in enumerate(told)]
    return _ENCODER.encode(kept[-_FAILURES_KEPT:])


def _checked(delay: object) -> int:
    if not isinstance(delay, int) or isinstance(delay, bool) or not 0 <= delay <= LONGEST:
        raise ConfigError(
            f"RetryPolicy.delay: expected a whole number of microseconds, ten years at most, got {shown(delay)}"
        )
    return delay


def _failure(error: BaseException, attempt: int, at: int) -> Failure:
    try:
        trace = _plain("".join(traceback.format_exception(error)))
    except Exception:
        trace = "the traceback cannot be shown"
    return Failure(_cut(type(error).__qualname__), _cut(error), attempt, at, trace[-_TRACEBACK_KEPT:])


def _plain(value: object) -> str:
    """Any value as text that every store can take, without the secrets of URLs in it: it must never be the reason that
    an error is lost."""
    try:
        text = str(value)
    except BaseException:
        text = f"<{type(value).__name__} that cannot be shown>"
    return without_secrets(text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0"))


def _cut(value: object) -> str:
    text = _plain(value)
    return text if len(text) <= _MESSAGE_KEPT else text[:_MESSAGE_KEPT] + "…"


def _reason(value: object) -> str:
    return _plain(value).encode()[:_REASON_KEPT].decode("utf-8", "ignore")
