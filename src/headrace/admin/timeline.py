"""A job's timeline: what happened to it, as far as its record tells.

Nothing is written for it. The record has the instants at its ends, its epoch is the instant of its last claim, and its
failures say when their attempts began and ended, and where.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from headrace.core.view import View
from headrace.seam.instants import datetime_or_none, to_datetime
from headrace.seam.records import Record
from headrace.text import reason_in_words
from headrace.types import Failure, JobState
from headrace.worker.failures import failures


class MomentKind(StrEnum):
    """What can happen to a job.

    >>> MomentKind("failed") is MomentKind.FAILED
    True
    """

    ENQUEUED = "enqueued"
    STARTED = "started"
    FAILED = "failed"
    """An attempt failed."""
    DUE = "due"
    """It waits for this instant."""
    ENDED = "ended"


class Moment(View, frozen=True):
    """One thing in the life of a job. Fields that do not apply are empty.

    >>> Moment(MomentKind.STARTED, None, attempt=1).to_dict()["kind"]
    'started'
    """

    kind: MomentKind
    at: datetime | None
    attempt: int = 0
    """STARTED, FAILED: the number of the attempt, from 1."""
    worker: str = ""
    detail: str = ""
    """FAILED: the error. ENDED: the state, and why."""
    traceback: str = ""
    seconds: float | None = None
    """FAILED, ENDED: how long the attempt took, its wait in the worker included."""


class Timeline(Struct, frozen=True):
    """A job's moments, earliest first.

    >>> Timeline([Moment(MomentKind.ENQUEUED, None)]).forgotten
    0
    """

    moments: list[Moment]
    forgotten: int = 0
    """Failed attempts that are no longer kept; they came before the first one listed."""
    lost: int = 0
    """How often in a row its worker has died."""


def timeline(record: Record, now: int) -> Timeline:
    """What the record, fetched with its error, tells."""
    kept = failures(record.error)
    moments = [Moment(MomentKind.ENQUEUED, datetime_or_none(record.enqueued_at))]
    for failure in kept:
        moments += _attempt(failure)
    moments += _last(record, kept)
    if record.state.terminal:
        moments.append(_end(record))
    elif record.state is not JobState.RUNNING and record.run_at > now:
        moments.append(Moment(MomentKind.DUE, to_datetime(record.run_at)))
    counted = sum(one.times == 1 for one in kept if one.attempt)
    return Timeline(moments, max(0, record.attempt - counted), record.lost)


def _attempt(failure: Failure) -> list[Moment]:
    times = f" ({failure.times} times in a row)" if failure.times > 1 else ""
    detail = f"{failure.type}: {failure.message}{times}"
    ended = Moment(
        MomentKind.FAILED,
        datetime_or_none(failure.at or None),
        failure.attempt,
        failure.worker,
        detail,
        failure.traceback,
        _seconds(failure.since, failure.at),
    )
    if not failure.since:
        return [ended]
    return [Moment(MomentKind.STARTED, to_datetime(failure.since), failure.attempt, failure.worker), ended]


def _last(record: Record, kept: list[Failure]) -> list[Moment]:
    """The last lease, unless its failure tells of it."""
    since = record.started_at
    if since is None or any(failure.since == since for failure in kept):
        return []
    return [Moment(MomentKind.STARTED, to_datetime(since), record.attempt + 1, record.worker)]


def _end(record: Record) -> Moment:
    reason = reason_in_words(record.reason, record.lost)
    detail = record.state.value if reason in ("", record.state.value) else f"{record.state.value}: {reason}"
    seconds = _seconds(record.epoch, record.finished_at) if record.state is JobState.COMPLETED else None
    return Moment(MomentKind.ENDED, datetime_or_none(record.finished_at), detail=detail, seconds=seconds)


def _seconds(since: int, until: int | None) -> float | None:
    return None if not since or until is None or until < since else (until - since) / 1e6
