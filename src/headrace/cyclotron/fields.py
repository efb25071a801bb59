"""The fields of a job as Cyclotron names them, and how they are stored."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import UNSET, Struct

from headrace.core.names import check_name, check_queue
from headrace.core.numbers import check_whole
from headrace.errors import InvalidJob
from headrace.payloads.pack import Packer
from headrace.text import shown
from headrace.types import SECTIONS, JobState, NewJob, Sections

NO_FUNCTION = "cyclotron"
"""The task of jobs without a function."""
OURS = "_cyclotron_"
"""What the queues of the janitor itself begin with."""
_MOST = 2**63 - 1
STATES = (JobState.AVAILABLE, JobState.RUNNING, JobState.COMPLETED, JobState.FAILED, JobState.PAUSED)


class JobInit(Struct, kw_only=True):
    """A job to be created.

    >>> JobInit(team_id=7, queue_name="hog", vm_state=b"...", priority=1).function_id is None
    True
    """

    team_id: int
    queue_name: str
    function_id: UUID | None = None
    id: UUID | None = None
    """The manager makes one when it is left out, and keeps it here: creating the same ``JobInit`` again after an error
    stores nothing twice."""
    priority: int = 0
    """Lower numbers come first."""
    scheduled: datetime | None = None
    """When it is due; now, if it is left out."""
    vm_state: bytes | None = None
    parameters: bytes | None = None
    metadata: bytes | None = None
    blob: bytes | None = None
    source: str | None = None
    """Where it comes from, such as the name of another queue backend."""
    shard: int | None = None
    """The number of the shard that it was sent to; the manager keeps it here. Nobody may know whether it is stored
    there, so it goes to no other one. A number that a manager does not have counts as none."""


def new_job(init: JobInit) -> NewJob:
    """The same as an ordinary new job."""
    if not isinstance(init, JobInit):
        raise InvalidJob(f"expected a JobInit, got {type(init).__name__}")
    sections = {name: UNSET if (body := getattr(init, name)) is None else body for name in SECTIONS}
    return NewJob(
        task=task_of(init.function_id),
        queue=init.queue_name,
        sections=Sections(**sections),
        tenant=tenant_of(init.team_id),
        priority=init.priority,
        run_at=init.scheduled,
        source=init.source,
        id=init.id,
    )


def check(init: JobInit, packer: Packer) -> None:
    """Refuse what would be refused when it is packed, at little cost: many jobs are checked before the first is
    stored."""
    job = new_job(init)
    check_queue(job.queue, "queue_name")
    packer.priority(job.priority)
    if job.run_at is not None:
        packer.instant(job.run_at, "scheduled")
    if job.source is not None:
        check_name(job.source, "source")
    for name, kind in (("id", UUID), ("shard", int)):
        if (given := getattr(init, name)) is not None and (not isinstance(given, kind) or isinstance(given, bool)):
            raise InvalidJob(f"{name}: expected a {kind.__name__} or None, got {type(given).__name__} {shown(given)}")
    for name, body in job.sections.changes().items():
        if not isinstance(body, bytes):
            raise InvalidJob(f"{name}: expected bytes or None, got {type(body).__name__}")
        packer.envelope.check_size(len(body), name)


def tenant_of(team_id: object) -> str:
    """The tenant that a team is."""
    return str(check_whole(team_id, "team_id", -_MOST, _MOST, error=InvalidJob))


def task_of(function_id: object) -> str:
    """The task that a function is."""
    if function_id is None:
        return NO_FUNCTION
    if not isinstance(function_id, UUID):
        raise InvalidJob(f"function_id: expected a UUID or None, got {shown(function_id)}")
    return str(function_id)


def team_of(tenant: str) -> int | None:
    """The team that a tenant is; None: the job was not created by a manager."""
    try:
        return int(tenant)
    except ValueError:
        return None


def function_of(task: str) -> UUID | None:
    """The function that a task is, if it is one."""
    try:
        return UUID(task)
    except ValueError:
        return None


def check_state(state: object) -> JobState:
    """One of the five states of Cyclotron."""
    if isinstance(state, str) and state in STATES:
        return JobState(state)
    raise InvalidJob(f"state: expected one of {', '.join(STATES)}, got {shown(state)}")
