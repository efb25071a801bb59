"""What the admin API answers with: flat views that JSON can carry."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import field

from headrace.admin.timeline import Timeline
from headrace.api.info import JobInfo
from headrace.api.why import Why
from headrace.core.view import View
from headrace.types import JobState


class JobPage(View, frozen=True):
    """One page of a search, newest job first.

    >>> JobPage([]).after is None
    True
    """

    jobs: list[JobInfo]
    after: str | None = None
    """Leads to the next page; None: there is none. A page may be short, or empty, and still have one."""
    looked_at: int = 0
    """How many jobs were looked at for it."""


class JobCount(View, frozen=True):
    """How many jobs a filter finds.

    >>> JobCount(3).exact
    True
    """

    number: int
    exact: bool = True
    """False: there are more."""


class SectionView(View, frozen=True):
    """One section of a job.

    >>> SectionView("vm_state", 120).value is None
    True
    """

    name: str
    bytes: int
    """As it is stored."""
    value: Any = None
    """Plain data, as redaction leaves it; None: it is not shown."""


class JobDetails(View, frozen=True):
    """Everything about a job: what the store knows, why it is not running, and what happened to it.

    Arguments, result and headers are as redaction leaves them.

    >>> JobDetails.__struct_fields__
    ('job', 'why', 'timeline', 'sections')
    """

    job: JobInfo
    why: Why
    timeline: Timeline
    sections: list[SectionView] = field(default_factory=list)


class Changed(View, frozen=True):
    """What became of one job that was to be changed.

    >>> Changed.__struct_fields__
    ('id', 'before', 'after', 'changed')
    """

    id: UUID
    before: JobState
    after: JobState | None
    """None: the job is gone."""
    changed: bool


class QueueView(View, frozen=True):
    """One queue in numbers.

    >>> QueueView("mail", available=2).name
    'mail'
    """

    name: str
    paused: bool = False
    available: int = 0
    """Jobs that wait for a worker: those that are due, and those that are scheduled."""
    scheduled: int = 0
    """Not due yet."""
    running: int = 0
    jobs_paused: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    oldest_due_seconds: float | None = None
    """How long the longest-waiting due job has been due."""
    workers: int = 0
    """Workers that claim from it."""
    slots: int = 0
    busy: int = 0
    """Of their slots, those that run a job, of whatever queue."""
    due: int = 0
    """Jobs that are due and wait."""


class WorkerView(View, frozen=True):
    """A worker that is alive.

    >>> WorkerView("web-1", queues=["mail"], slots=10).busy
    0
    """

    name: str
    queues: list[str] = field(default_factory=list)
    slots: int = 0
    busy: int = 0
    started_at: datetime | None = None
    seen_seconds: float = 0.0
    """How long ago it was last heard from."""


class KeptView(View, frozen=True):
    """What one class of ended jobs, ticks or keys takes up.

    >>> KeptView("failed", 10, 2_048).count
    10
    """

    target: str
    count: int
    bytes: int


class Overview(View, frozen=True):
    """The store in numbers.

    >>> Overview("memory://", None).queues
    []
    """

    store: str
    """Its URL, without secrets."""
    now: datetime | None
    """The store's clock."""
    queues: list[QueueView] = field(default_factory=list)
    workers: list[WorkerView] = field(default_factory=list)
    kept: list[KeptView] = field(default_factory=list)
    store_bytes: int = 0
    from_replica: bool = False
    """Whether a replica was asked, which may lag."""
    oldest_dead_seconds: float | None = None
    """Since the oldest dead letter died; None: there is none."""
    vault_lag_seconds: float | None = None
    """Since the oldest job ended that is not in the vault, 0 if all are; None: there is no vault."""
