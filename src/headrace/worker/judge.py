"""Decides what follows: turns the outcome of a handler, or its exception, into a settlement."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
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
from headrace.seam.records import SPAWNED, JobId, Leased, Row, Settlement, overspawned
from headrace.text import shown, without_secrets
from headrace.types import (
    OUTCOMES,
    Again,
    Cancelled,
    Done,
    Fail,
    Failure,
    JobState,
    NewJob,
    Outcome,
    Patch,
    Paused,
    Retry,
)
from headrace.worker.failures import failures
from headrace.worker.handler import Handler
from headrace.worker.retry import RetryPolicy, exponential

_COMPLETED = JobState.COMPLETED
_FAILURES_KEPT = 20
_MESSAGE_KEPT = 2_000
_OLD_MESSAGE_KEPT = 200
"""Characters of the messages before the last."""
_REASON_KEPT = 1_024
_TRACEBACK_KEPT = 8_000
_ENCODER = msgspec.msgpack.Encoder()

EXHAUSTED = "retries exhausted"
UNUSABLE = "payload cannot be used"
OBJECTS_REST = 5_000_000
"""Microseconds after which a job whose sections could not be loaded is due again."""
UNSTORABLE = "outcome cannot be stored"
GAVE_UP = "not retryable"
NOT_AGAIN = "not started again: at most once"
_LAZY = (GeneratorType, AsyncGeneratorType)
_POLICY_FAILED = "retry policy failed"
_NOBODY_KNOWS = "no worker knows its task"
_SPREAD = "spawn a job that enqueues the others"
_UNKNOWN = exponential(10, base="10s", cap="10m")
"""How often a job is given back until a worker knows its task, and how long it waits in between."""


class Judge:
    """Makes settlements for one worker."""

    def __init__(self, holder: str, packer: Packer, clock: Clock, rng: Random, worker: str = "") -> None:
        self._holder = holder
        self._worker = worker
        self._packer = packer
        self._clock = clock
        self._rng = rng

    def done(self, leased: Leased, handler: Handler, value: Any) -> Settlement:
        """The handler returned a plain value. This is the common case, so it is short."""
        ttl = handler.result_ttl if leased.result_ttl is None else leased.result_ttl
        result = None
        if ttl > 0:
            try:
                result = self._wrapped(leased, handler, value)
            except Exception as error:
                return self._unstorable(leased, error)
        elif isinstance(value, _LAZY):
            lazy = f"result of {handler.task}(…): a generator, of which nothing has run; return a list"
            return self._unstorable(leased, CodecError(lazy))
        return Settlement(
            leased.id, leased.epoch, self._holder, _COMPLETED, result=result, result_ttl=ttl
        )  # fmt: skip

    def settle(self, leased: Leased, handler: Handler, outcome: Outcome) -> Settlement:
        """The handler returned an outcome, or raised it in a ``Stop``."""
        try:
            return self._settle(leased, handler, outcome)
        except Exception as error:
            return self._unstorable(leased, error)

    def raised(self, leased: Leased, retry: RetryPolicy, error: BaseException) -> Settlement:
        """The handler raised: the job gets another attempt, or fails."""
        failure = self._failure(leased, error)
        try:
            if not retry.allows(error):
                return self._fail(leased, failure, GAVE_UP)
            return self._attempt(leased, retry, failure, None)
        except BaseException as problem:  # raised by the user's own retry policy, or exception class
            also = self._failure(leased, problem)
            return self._fail(leased, failure, _POLICY_FAILED, also)

    def unknown(self, leased: Leased, error: UnknownTask) -> Settlement:
        """This worker has no handler for the job; one that has may be started soon. The job is given back with a delay,
        and no attempt counts. The error says how often so far. After the last time it fails; requeued, it starts
        over."""
        before = failures(leased.error)
        times = 1 + before.pop().times if before and before[-1].type == type(error).__qualname__ else 1
        times = 1 if times > _UNKNOWN.max_attempts else times
        now = msgspec.structs.replace(self._failure(leased, error), attempt=leased.attempt, times=times)
        settlement = self.release(
            leased.id, leased.epoch, delay=_UNKNOWN.delay(times, self._rng), unbegun=not leased.begun
        )
        if times >= _UNKNOWN.max_attempts:
            settlement = msgspec.structs.replace(settlement, state=JobState.FAILED, delay=0, reason=_NOBODY_KNOWS)
        return msgspec.structs.replace(settlement, error=_kept([*before, now]))

    def refuse(self, leased: Leased, error: BaseException, reason: str) -> Settlement:
        """The job fails, however many attempts are left."""
        return self._fail(leased, self._failure(leased, error), reason)

    def told(self, leased: Leased, error: str) -> bytes:
        """The stored error of a job, with one more failure that its holder tells of."""
        return _remember(leased.error, Failure("Fail", _cut(error), leased.attempt + 1, self._clock.now()))

    def refused(self, settlement: Settlement, error: BaseException) -> Settlement:
        """The settlement instead of an outcome that the store has rejected: the job fails."""
        failure = _failure(error, 0, self._clock.now(), settlement.epoch, self._worker)
        return self._failed(settlement.id, settlement.epoch, None, UNSTORABLE, failure)

    def release(
        self, job_id: JobId, epoch: int, *, delay: int | None = None, keep_lost: bool = True, unbegun: bool = False
    ) -> Settlement:
        """The job is given back: available again, in its old place unless a delay is given. No attempt counts."""
        state = JobState.AVAILABLE
        return Settlement(job_id, epoch, self._holder, state, delay=delay, keep_lost=keep_lost, unbegun=unbegun)

    def cancelled(self, leased: Leased, reason: str = "cancelled") -> Settlement:
        """The job is cancelled, as was asked for."""
        return Settlement(leased.id, leased.epoch, self._holder, JobState.CANCELLED, reason=reason)

    def _settle(self, leased: Leased, handler: Handler, outcome: Outcome) -> Settlement:
        match outcome:
            case Done(result, result_ttl):
                base = self.done(leased, handler, result)
                if result_ttl is not None and base.state is JobState.COMPLETED:
                    base = self._with_ttl(base, leased, handler, result, micros(result_ttl, "result_ttl"))
            case Again(after):
                base = self.release(leased.id, leased.epoch, delay=micros(after, "after"), keep_lost=False)
                base = self._at(base, outcome.at, bool(after))
            case Paused():
                base = Settlement(leased.id, leased.epoch, self._holder, JobState.PAUSED, delay=None)
            case Cancelled(reason):
                base = self.cancelled(leased, _reason(reason))
            case Fail(error, reason):
                failure = self._told(leased, "Fail", error)
                base = self._fail(leased, failure, _reason(reason))
            case Retry(after, error):
                failure = self._told(leased, "Retry", error)
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
            cells=self._packer.patch(patch, leased.id, leased.tenant) if patch else None,
            spawn=self._spawned(outcome.spawn),
        )

    def _spawned(self, spawn: Sequence[NewJob]) -> list[Row]:
        jobs = list(spawn)
        if len(jobs) > SPAWNED:
            raise InvalidJob(f"spawn: expected at most {SPAWNED:,} jobs, got {len(jobs):,}; {_SPREAD}")
        rows = [self._packer.pack(job) for job in jobs]
        if (problem := overspawned(rows)) is not None:
            raise InvalidJob(f"spawn: {problem}; {_SPREAD}")
        return rows

    def _at(self, base: Settlement, at: datetime | None, delayed: bool) -> Settlement:
        """The settlement with the instant at which the job runs again, if one is given."""
        if at is None:
            return base
        if delayed:
            raise InvalidJob("expected after or at, got both")
        return msgspec.structs.replace(base, run_at=self._packer.instant(at, "at"))

    def _with_ttl(self, base: Settlement, leased: Leased, handler: Handler, value: Any, ttl: int) -> Settlement:
        result = base.result
        if result is None and ttl > 0:
            result = self._wrapped(leased, handler, value)
        return msgspec.structs.replace(base, result=result, result_ttl=ttl)

    def _wrapped(self, leased: Leased, handler: Handler, value: Any) -> bytes | None:
        try:
            return self._packer.wrap_result(value, handler.result_serde, leased.id)
        except PayloadError as error:
            arrow = f" -> {kind}" if (kind := annotation(handler.result_serde)) else ""
            wrong = PayloadTooLarge if isinstance(error, PayloadTooLarge) else CodecError
            raise wrong(f"result of {handler.task}(…){arrow}: {worded(error).removeprefix('result: ')}") from error

    def _failure(self, leased: Leased, error: BaseException) -> Failure:
        return _failure(error, leased.attempt + 1, self._clock.now(), leased.epoch, self._worker)

    def _told(self, leased: Leased, kind: str, error: str) -> Failure:
        """The failure of an outcome that says so itself."""
        now = self._clock.now()
        return Failure(kind, _cut(error), leased.attempt + 1, now, since=leased.epoch, worker=self._worker)

    def _attempt(self, leased: Leased, retry: RetryPolicy, failure: Failure, after: int | None) -> Settlement:
        attempt = leased.attempt + 1
        if attempt >= (leased.max_attempts or retry.max_attempts):
            return self._fail(leased, failure, EXHAUSTED)
        delay = _checked(retry.delay(attempt, self._rng)) if after is None else after
        error = _remember(leased.error, failure)
        return Settlement(
            leased.id, leased.epoch, self._holder, JobState.AVAILABLE, delay=delay, failed_attempt=True, error=error
        )

    def _fail(self, leased: Leased, failure: Failure, reason: str, *more: Failure) -> Settlement:
        return self._failed(leased.id, leased.epoch, leased.error, reason, failure, *more)

    def _failed(self, job_id: JobId, epoch: int, before: bytes | None, reason: str, *now: Failure) -> Settlement:
        error = _remember(before, *now)
        return Settlement(job_id, epoch, self._holder, JobState.FAILED, failed_attempt=True, error=error, reason=reason)

    def _unstorable(self, leased: Leased, error: BaseException) -> Settlement:
        """The work is done, but its outcome cannot be stored. To do it again would not help."""
        return self.refuse(leased, error, UNSTORABLE)


def unwrap(error: BaseException) -> Outcome | None:
    """The outcome in a ``Stop``."""
    return error.outcome if isinstance(error, Stop) and isinstance(error.outcome, OUTCOMES) else None


def _remember(before: bytes | None, *now: Failure) -> bytes:
    return _kept([*failures(before), *now])


def _kept(all_failures: list[Failure]) -> bytes:
    """The last failures as they are stored: the very last in full, the others without tracebacks and cut short."""
    *before, last = all_failures[-_FAILURES_KEPT:]
    return _ENCODER.encode([*map(_shortened, before), last])


def _shortened(failure: Failure) -> Failure:
    message = failure.message
    if len(message) > _OLD_MESSAGE_KEPT + 1:
        message = f"{message[:_OLD_MESSAGE_KEPT]}…"
    elif not failure.traceback:
        return failure
    return msgspec.structs.replace(failure, message=message, traceback="")


def _checked(delay: object) -> int:
    if not isinstance(delay, int) or isinstance(delay, bool) or not 0 <= delay <= LONGEST:
        raise ConfigError(
            f"RetryPolicy.delay: expected a whole number of microseconds, ten years at most, got {shown(delay)}"
        )
    return delay


def _failure(error: BaseException, attempt: int, at: int, since: int, worker: str) -> Failure:
    try:
        trace = _plain("".join(traceback.format_exception(error)))
    except Exception:
        trace = "the traceback cannot be shown"
    kind, text = _cut(type(error).__qualname__), _cut(error)
    return Failure(kind, text, attempt, at, trace[-_TRACEBACK_KEPT:], since=since, worker=worker)


def _plain(value: object) -> str:
    """Any value as text that every store can take, without the secrets of URLs in it. It never raises, so that no error
    is lost."""
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
