"""The errors for those who wait for a result: why there is none."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headrace.api.info import job_info
from headrace.errors import JobCancelled, JobError, JobExpired, JobFailed, ResultExpired, RetriesExhausted
from headrace.payloads.codec import Envelope
from headrace.seam.records import Record
from headrace.text import reason_in_words
from headrace.types import JobState
from headrace.worker.failures import failures
from headrace.worker.judge import EXHAUSTED


def raise_unless_completed(record: Record, envelope: Envelope) -> None:
    """Raise the error that says why there is no result, unless the job completed."""
    job_id = str(UUID(bytes=record.id))
    match record.state:
        case JobState.COMPLETED:
            if not record.held:
                raise ResultExpired(f"job {job_id} completed, but its result is no longer kept")
        case JobState.CANCELLED:
            kind: type[JobError] = JobExpired if record.reason == "expired" else JobCancelled
            why = "" if record.reason in ("", "cancelled") else f": {record.reason}"
            raise kind(f"job {job_id} was cancelled{why}")
        case JobState.FAILED:
            raise failed(record, envelope)


def failed(record: Record, envelope: Envelope) -> JobFailed:
    """The error for a dead letter."""
    job_id = str(UUID(bytes=record.id))
    last: dict[str, Any] = {}
    if known := failures(record.error):
        last = {"type": known[-1].type, "message": known[-1].message, "traceback": known[-1].traceback}
    kind = RetriesExhausted if record.reason == EXHAUSTED else JobFailed
    after = f" after {record.attempt} attempt(s)" if record.attempt else ""
    why = reason_in_words(record.reason, record.lost)
    what = f": {last['type']}: {last['message']}" if last and why == record.reason else ""
    return kind(
        f"job {job_id} failed{after}, {why}{what}",
        job_id=job_id,
        attempts=record.attempt,
        error=last,
        reason=record.reason,
        payload=job_info(record, envelope).args,
    )
