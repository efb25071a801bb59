"""The values that users hand in and get back: a new job, its sections, and the outcomes a handler may return.

Rich types live here, at the edge; the flat records that cross the seam are in :mod:`headrace.seam.records`, and the job
as its handler sees it is in :mod:`headrace.worker.job`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ResultT_co = TypeVar("ResultT_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    ResultT_co = TypeVar("ResultT_co", covariant=True)

Duration = int | float | str | timedelta
"""Seconds as a number, ``"30s"``, ``"1h30m"``, ``"250ms"``, or a timedelta."""

SECTIONS = ("parameters", "vm_state", "metadata", "blob")
"""The names of the four payload sections."""


class JobState(StrEnum):
    """Where a job is. *Scheduled* and *retrying* are views: available with a later ``run_at``, or with ``attempt`` > 0.

    >>> JobState("failed").terminal
    True
    """

    AVAILABLE = "available"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """Given up: kept among the dead letters until it is requeued, purged or swept."""

    @property
    def terminal(self) -> bool:
        """Whether the job has ended; only a recorded requeue leaves such a state."""
        return self in _TERMINAL


_TERMINAL = frozenset((JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED))


class Sections(Struct, frozen=True):
    """The four payload sections. ``UNSET`` keeps what is stored, ``None`` clears it, bytes replace it.

    >>> Sections(blob=None).changes()
    {'blob': None}
    """

    parameters: bytes | UnsetType | None = UNSET
    vm_state: bytes | UnsetType | None = UNSET
    metadata: bytes | UnsetType | None = UNSET
    blob: bytes | UnsetType | None = UNSET

    def changes(self) -> dict[str, bytes | None]:
        """What is set or cleared, by section name."""
        found = ((name, getattr(self, name)) for name in SECTIONS)
        return {name: value for name, value in found if not isinstance(value, UnsetType)}


class Encoded(Struct, frozen=True):
    """Arguments that a task has checked and encoded already."""

    cell: bytes


NO_SECTIONS = Sections()
"""No section is set or cleared."""


class NewJob(Struct, frozen=True, kw_only=True):
    """A job to be enqueued: the task's name, its arguments, and how it should be run.

    >>> NewJob(task="mail.welcome", args={"user_id": 42}, delay="10m").queue
    'default'
    """

    task: str
    queue: str = "default"
    args: Mapping[str, Any] | Encoded | None = None
    """Arguments by name, encoded into the ``parameters`` section."""
    sections: Sections = NO_SECTIONS
    """Sections as bytes, if you encode them yourself."""
    key: str | None = None
    """Deduplication: taken in its queue while the job lives, and for ``result_ttl`` after it has completed; ``unique``
    says otherwise."""
    tenant: str = ""
    group: str | None = None
    """Jobs of one group in one queue run one after the other, in the order in which they are due, retries included; or
    as many at a time as the queue's policy allows."""
    priority: int = 0
    """Lower numbers run first."""
    run_at: datetime | None = None
    delay: Duration | None = None
    max_attempts: int | None = None
    timeout: Duration | None = None
    expires: Duration | None = None
    """A job that has not started this long after its enqueue is cancelled."""
    result_ttl: Duration | None = None
    headers: Mapping[str, str] | None = None
    """Small notes that travel with the job: trace context, correlation id."""
    source: str | None = None
    """Where the job comes from, such as the name of the system that made it. It stays with the job, whatever becomes of
    it."""
    on_failed: str = "run"
    """``"run"``: a key whose job failed may be enqueued again; ``"return"``: the failed job answers as a duplicate."""
    unique: str | Duration | None = None
    """How long another job that has the key keeps this one out: ``"while pending"``, until it starts; ``"until done"``,
    until it ends; or a time, for which its key and its result are kept after it has completed. None: for
    ``result_ttl``."""
    on_duplicate: str = "keep"
    """When the key's job waits: ``"keep"`` it as it is; ``"replace"`` its arguments and its time by those of this one;
    or ``"replace arguments"`` or ``"replace time"`` alone. A job that runs is kept."""
    overflow: str | None = None
    """The queue that takes the job when its own has no room."""
    when_full: str = "raise"
    """When no queue has room: ``"raise"`` ``QueueFull``, or ``"block"`` for up to ``patience`` until there is."""
    id: UUID | bytes | None = None
    """A UUID, or its 16 bytes; the client makes one if it is left out. ``task.job(…)`` makes it at once, so that
    enqueueing the same jobs again after an error stores none twice."""

    @property
    def job_id(self) -> UUID | None:
        """The id as handles and errors show it, however it was given."""
        return UUID(bytes=self.id) if isinstance(self.id, bytes) else self.id


class SharedOptions(TypedDict, total=False):
    """Options of ``NewJob`` that a task sets for all its jobs and that a single job can override."""

    queue: str
    priority: int
    timeout: Duration | None
    expires: Duration | None
    result_ttl: Duration | None
    overflow: str | None
    when_full: Literal["raise", "block"]


class EachJobOptions(TypedDict, total=False):
    """Options of a single job, of a task or of a ``Queue``."""

    tenant: str
    group: str | None
    delay: Duration | None
    max_attempts: int | None
    headers: Mapping[str, str] | None
    source: str | None
    on_failed: Literal["run", "return"]
    unique: Literal["while pending", "until done"] | Duration | None
    on_duplicate: Literal["keep", "replace", "replace arguments", "replace time"]


class NewJobOptions(SharedOptions, EachJobOptions, total=False):
    """Options of a single job of a task."""

    key: str | None
    run_at: datetime | None


class QueueOptions(EachJobOptions, total=False):
    """What ``queue.enqueue(…)`` takes."""

    priority: int
    result_ttl: Duration | None


class Patch(Struct, frozen=True):
    """Changes to the job itself, applied together with its outcome. What is left out stays as it is.

    >>> from headrace import App, Patch, Retry
    >>> app = App("memory://")
    >>> down = {"eu"}
    >>> @app.task
    ... def deploy(region: str) -> Retry | None:
    ...     return Retry("1m", error="down", patch=Patch(priority=10)) if region in down else None
    >>> deploy("eu").patch.priority
    10
    """

    queue: str | None = None
    priority: int | None = None
    sections: Sections = Sections()


class Done(Struct, Generic[ResultT_co], frozen=True):
    """The job is complete. A handler that returns anything but an outcome returns ``Done(that)``.

    >>> from headrace import App, Done
    >>> app = App("memory://")
    >>> @app.task
    ... def receipt(order: int) -> None: ...
    >>> @app.task
    ... def pay(order: int) -> Done[str]:
    ...     return Done("paid", result_ttl="1d", spawn=[receipt.job(order)])
    >>> pay(7).result
    'paid'
    """

    result: ResultT_co = None  # type: ignore[assignment]
    result_ttl: Duration | None = None
    patch: Patch | None = None
    spawn: Sequence[NewJob] = ()


class Retry(Struct, frozen=True):
    """The attempt failed: try again after ``after``, or at ``at``, or when the retry policy says. After the last
    attempt the job fails.

    >>> from headrace import App, Retry
    >>> app = App("memory://")
    >>> @app.task
    ... def publish(post: int) -> Retry | None:
    ...     status, seconds = 429, 30  # what the service answered
    ...     return Retry(seconds, error="too many requests") if status == 429 else None
    >>> publish(7).after
    30
    """

    after: Duration | None = None
    error: str = ""
    patch: Patch | None = None
    spawn: Sequence[NewJob] = ()
    at: datetime | None = None


class Again(Struct, frozen=True):
    """Not now, or once more: available again after ``after``, or at ``at``, without counting an attempt.

    >>> from headrace import Again, App
    >>> app = App("memory://")
    >>> stock = {"tea": 0}
    >>> @app.task
    ... def pack(item: str) -> str | Again:
    ...     return f"packed {item}" if stock[item] else Again("10m")
    >>> pack("tea").after
    '10m'
    """

    after: Duration = 0
    patch: Patch | None = None
    spawn: Sequence[NewJob] = ()
    at: datetime | None = None


class Paused(Struct, frozen=True):
    """The job waits, without counting an attempt, until somebody resumes it (``app.resume_job``, ``headrace job
    resume``).

    >>> from headrace import App, Paused
    >>> app = App("memory://")
    >>> signed = {7}
    >>> @app.task
    ... def ship(order: int) -> str | Paused:
    ...     return f"shipped {order}" if order in signed else Paused()
    >>> ship(8)
    Paused(patch=None, spawn=())
    """

    patch: Patch | None = None
    spawn: Sequence[NewJob] = ()


class Fail(Struct, frozen=True):
    """The job cannot succeed: it goes to the dead letters at once, even if attempts are left.

    >>> from headrace import App, Fail
    >>> app = App("memory://")
    >>> @app.task
    ... def charge(cents: int) -> str | Fail:
    ...     return f"charged {cents}" if cents > 0 else Fail("nothing to charge")
    >>> charge(0).error
    'nothing to charge'
    """

    error: str = ""
    reason: str = "failed"
    patch: Patch | None = None
    spawn: Sequence[NewJob] = ()


class Cancelled(Struct, frozen=True):
    """The job ends as cancelled.

    >>> from headrace import App, Cancelled
    >>> app = App("memory://")
    >>> paid = {7}
    >>> @app.task
    ... def remind(order: int) -> str | Cancelled:
    ...     return Cancelled("paid already") if order in paid else f"please pay {order}"
    >>> remind(7).reason
    'paid already'
    """

    reason: str = "cancelled"
    patch: Patch | None = None
    spawn: Sequence[NewJob] = ()


OUTCOMES = (Done, Retry, Again, Paused, Fail, Cancelled)
Outcome = Done | Retry | Again | Paused | Fail | Cancelled
"""What a handler may return. ``patch`` and ``spawn`` are applied atomically with it, or not at all.

>>> from headrace import Again, App, Done, Fail, Outcome
>>> app = App("memory://")
>>> @app.task
... def pack(item: str, left: int) -> Outcome:
...     if left < 0:
...         return Fail(f"we do not sell {item}")
...     return Done(f"packed {item}") if left else Again("10m")
>>> isinstance(pack("tea", 3), Outcome)
True
"""


class Failure(Struct, frozen=True, omit_defaults=True):
    """One failed attempt as it is kept with the job."""

    type: str
    message: str
    attempt: int = 0
    at: int = 0
    """Microseconds since 1970, by the worker's clock."""
    traceback: str = ""
    times: int = 1
    """How often in a row. Only failures for want of a handler are merged like this; they do not count as attempts."""
    since: int = 0
    """When the attempt was claimed, by the store's clock; 0: not known."""
    worker: str = ""
    """The name of its worker."""
