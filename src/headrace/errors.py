"""Every error that Headrace raises, in one tree.

::

    HeadraceError
    ├─ ConfigError               what you asked for cannot be set up
    │  └─ UnknownTask            no handler of that name here
    ├─ InvalidJob                a job that cannot be accepted as it is
    ├─ ScheduleNotFound          no schedule of that name
    ├─ QueueFull                 the queue, or the store, is full
    ├─ SafetyStop                the janitor did not delete: it would be too much, or the clock is odd
    ├─ BackendError              the store refused or failed
    │  ├─ Unavailable            not now; the core retries it
    │  │  ├─ PartlyUnavailable   a part of the store is away; the others have answered
    │  │  ├─ StoreFull           no room left, on the disk or in the server's memory
    │  │  └─ ObjectsUnavailable  not now, for the object store
    │  │     └─ ObjectsRefused   it turned down the login, a right or the bucket; a ConfigError too
    │  ├─ Rejected               will never be accepted
    │  ├─ SchemaMismatch         made by another version, or not ours
    │  └─ Corrupt                the store's own check failed
    ├─ LeaseLost                 another worker has the job by now
    ├─ PayloadError              the bytes of a job or a result
    │  ├─ PayloadMissing
    │  ├─ PayloadTooLarge
    │  ├─ ObjectMissing          the object that holds a section is gone
    │  ├─ ObjectCorrupt          it holds other bytes than were stored
    │  ├─ CodecError
    │  └─ SealError              not sealed, changed, or sealed for another job
    │     └─ UnknownKey
    └─ JobError                  raised to those who wait for a job
       ├─ JobFailed
       │  └─ RetriesExhausted
       ├─ JobCancelled
       │  └─ JobExpired
       ├─ ResultExpired
       ├─ WaitTimeout
       └─ JobNotFound

    Stop(outcome)                not an error: a handler's way out from deep in a stack

Every message says what was expected, what came, and what to do. ``code`` is a stable name for programs;
``to_dict()`` gives a form that JSON can carry.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.text import one_line

if TYPE_CHECKING:
    from headrace.types import Outcome


class HeadraceError(Exception):
    """Something in Headrace went wrong."""

    @property
    def code(self) -> str:
        """The class name in snake_case: stable, for programs.

        >>> JobNotFound().code
        'job_not_found'
        """
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data.

        >>> WaitTimeout("no answer in 5 s").to_dict()
        {'code': 'wait_timeout', 'message': 'no answer in 5 s'}
        """
        return {"code": self.code, "message": str(self)}


class ConfigError(HeadraceError, ValueError):
    """A setting is missing, unknown or of the wrong kind."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(None if message is None else one_line(message))


class UnknownTask(ConfigError):
    """No handler is registered under that task name."""


class InvalidJob(HeadraceError, ValueError):
    """The job cannot be accepted as it is; nothing was stored."""


class ScheduleNotFound(HeadraceError, LookupError):
    """There is no schedule of that name."""


class QueueFull(HeadraceError):
    """The queue, or the store, is full: as many jobs wait as its policy allows.

    Of several jobs, some may have been stored: ``admitted`` and ``refused`` list them by id, in order.

    >>> from uuid import UUID
    >>> QueueFull(queue="mail", refused=[UUID(int=7)]).to_dict()["refused"]
    ['00000000-0000-0000-0000-000000000007']
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        queue: str = "",
        full: Sequence[str] = (),
        admitted: Sequence[UUID] = (),
        refused: Sequence[UUID] = (),
    ) -> None:
        super().__init__(message)
        self.queue = queue
        """Of the first job that was refused."""
        self.full = list(full)
        """The queues that are full, and ``""`` if the store is; empty if that is not known."""
        self.admitted = list(admitted)
        self.refused = list(refused)

    def to_dict(self) -> dict[str, Any]:
        ids = {"admitted": list(map(str, self.admitted)), "refused": list(map(str, self.refused))}
        return super().to_dict() | {"queue": self.queue, "full": self.full, **ids}


class SafetyStop(HeadraceError):
    """The janitor deleted nothing: much would go by rules that are new, or the store's clock may be wrong.

    ``plan`` says what would go. If that is right, run it with ``force=True`` (``headrace janitor run --force``).
    """

    def __init__(self, message: str, plan: Any) -> None:
        super().__init__(message)
        self.plan = plan
        """What would be deleted: a ``JanitorRun``."""


class BackendError(HeadraceError):
    """The store refused or failed."""


class Unavailable(BackendError):
    """The store cannot be reached or cannot serve right now; trying again may help."""


class PartlyUnavailable(Unavailable):
    """A part of the store cannot be reached right now; the other parts have answered.

    ``answers`` are those of the operation, by position; what is ``unanswered`` there may or may not have happened.
    """

    def __init__(
        self, message: str | None = None, answers: Sequence[Any] = (), unanswered: Collection[int] = ()
    ) -> None:
        super().__init__(message)
        self.answers = answers
        self.unanswered = frozenset(unanswered)


class StoreFull(Unavailable):
    """The store has no room left; nothing was written. Free some space; work then goes on by itself."""


class ObjectsUnavailable(Unavailable):
    """The object store cannot be reached or cannot serve right now; trying again may help."""


class ObjectsRefused(ObjectsUnavailable, ConfigError):
    """The object store turned down the login, a right or the bucket: as the URL is, or as the object store is set up.

    Correct it; work then goes on by itself.
    """


class Rejected(BackendError):
    """The store rejected what it was given, and always will; nothing of it was stored."""


class SchemaMismatch(BackendError):
    """The store holds something that this version of Headrace did not make or cannot read."""


class Corrupt(BackendError):
    """The store's own check of its bytes failed."""


class LeaseLost(HeadraceError):
    """The job is no longer held under this run's lease: another worker has it, or it has ended. Roll back.

    >>> LeaseLost().code
    'lease_lost'
    """


class PayloadError(HeadraceError):
    """A payload cannot be used."""


class PayloadMissing(PayloadError):
    """The job has no such section."""


class PayloadTooLarge(PayloadError, ValueError):
    """A payload is over the limit; nothing was stored."""


class ObjectMissing(PayloadError, LookupError):
    """The object that holds a section is gone."""


class ObjectCorrupt(PayloadError):
    """The object that holds a section has other bytes than were stored."""


class CodecError(PayloadError, ValueError):
    """A payload cannot be encoded or decoded."""


class SealError(PayloadError):
    """A payload or result is not sealed, was changed, or was sealed for another job."""


class UnknownKey(SealError):
    """A payload or result is sealed with a key that this process does not have."""


class JobError(HeadraceError):
    """The job gave no result."""


class JobFailed(JobError):
    """The job failed for good and is a dead letter."""

    def __init__(
        self,
        message: str | None = None,
        *,
        job_id: str = "",
        attempts: int = 0,
        error: dict[str, Any] | None = None,
        reason: str = "",
        payload: Any = None,
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.attempts = attempts
        self.error = error or {}
        self.reason = reason
        self.payload = payload
        """The job's arguments as plain data, where they can be shown."""

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {
            "job_id": self.job_id,
            "attempts": self.attempts,
            "error": self.error,
            "reason": self.reason,
            "payload": self.payload,
        }


class RetriesExhausted(JobFailed):
    """The job failed on every attempt that it was allowed."""


class JobCancelled(JobError):
    """The job was cancelled before it finished."""


class JobExpired(JobCancelled):
    """The job was not started before it expired."""


class ResultExpired(JobError):
    """The job completed, but its result is no longer kept. Give it a longer result_ttl."""


class WaitTimeout(JobError, TimeoutError):
    """No answer came in time. The job is untouched and may still finish: ask for its status later, by ``job_id``."""

    def __init__(self, message: str | None = None, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | ({"job_id": self.job_id} if self.job_id else {})


class JobNotFound(JobError, LookupError):
    """There is no such job: it never existed, or its record is past retention."""


class Stop(Exception):
    """Raise ``Stop(outcome)`` to end a handler from deep in a stack; returning the outcome is the usual way.

    >>> from headrace import Again, Stop
    >>> Stop(Again("5s")).outcome
    Again(after='5s', patch=None, spawn=(), at=None)
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome
