"""What a queue answers: values, not exceptions."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from msgspec import Struct

from headrace.errors import JobFailed
from headrace.types import JobState

R = TypeVar("R")


class Queued(Struct, frozen=True):
    """A new job was stored."""

    status: str = "queued"


class Duplicate(Struct, frozen=True):
    """The id is taken by a job that is not done: ``state`` is queued, processing, failing or (if asked for) failed."""

    state: str
    attempts: int = 0
    status: str = "duplicate"


class Completed(Struct, Generic[R], frozen=True):
    """The id's job is done, and this is its cached result."""

    result: R
    status: str = "completed"


class JobStatus(Struct, Generic[R], frozen=True):
    """Where a job is, in a queue's words: queued, processing, failing, completed, failed, cancelled."""

    id: str
    state: str
    created_at: datetime
    attempts: int
    result: R | None = None
    error: JobFailed | None = None
    worker: str = ""


def state_word(state: JobState, attempt: int) -> str:
    """A stored state in a queue's words.

    >>> state_word(JobState.AVAILABLE, 1)
    'failing'
    """
    if state in (JobState.AVAILABLE, JobState.PAUSED):
        return "failing" if attempt else "queued"
    return "processing" if state is JobState.RUNNING else state.value
