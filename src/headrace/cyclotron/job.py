"""A job that was dequeued, by Cyclotron's names."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid5

from headrace.cyclotron.fields import check_state, function_of, team_of
from headrace.seam.instants import to_datetime
from headrace.types import JobState
from headrace.worker.job import CancelToken
from headrace.worker.pulled_job import Flush, PulledJob


class Job:
    """A job under the lock of its worker. The ``set_…`` methods change a draft; ``release`` stores it in one step.

    A section that was not dequeued is None: ``dequeue_jobs`` leaves the ``vm_state`` in the store, and
    ``fetch_vm_state`` brings it. What was not set stays as it is stored, also if it was not dequeued.
    """

    __slots__ = ("_pulled",)

    def __init__(self, pulled: PulledJob) -> None:
        self._pulled = pulled

    # -- fields

    @property
    def id(self) -> UUID:
        return self._pulled.id

    @property
    def team_id(self) -> int | None:
        """None: a manager did not create the job."""
        return team_of(self._pulled.tenant)

    @property
    def function_id(self) -> UUID | None:
        return function_of(self._pulled.task)

    @property
    def queue_name(self) -> str:
        return self._pulled.queue

    @property
    def state(self) -> JobState:
        """``running``: it is yours."""
        return JobState.RUNNING

    @property
    def priority(self) -> int:
        return self._pulled.priority

    @property
    def scheduled(self) -> datetime:
        return self._pulled.run_at

    @property
    def created(self) -> datetime:
        return self._pulled.enqueued_at

    @property
    def vm_state(self) -> bytes | None:
        return self._section("vm_state")

    @property
    def parameters(self) -> bytes | None:
        return self._section("parameters")

    @property
    def metadata(self) -> bytes | None:
        return self._section("metadata")

    @property
    def blob(self) -> bytes | None:
        return self._section("blob")

    @property
    def source(self) -> str | None:
        """Where the job came from."""
        return self._pulled.source

    @property
    def lock_id(self) -> UUID:
        """The lock under which it is held: another one for every job and every dequeue."""
        lease = self._pulled.lease
        return uuid5(lease.id, f"{lease.holder} {lease.epoch}")

    @property
    def last_heartbeat(self) -> datetime | None:
        """When its lock was given or last renewed, by this process's clock; None if it is not held any more."""
        return self._pulled.renewed_at

    @property
    def transition_count(self) -> int:
        """How often its state has changed, at least: attempts that failed and stalls count, and this run."""
        return 2 * (self._pulled.attempt + self._pulled.lost) + 1

    @property
    def janitor_touch_count(self) -> int:
        """Stalls in a row."""
        return self._pulled.lost

    @property
    def last_transition(self) -> datetime:
        """When it was dequeued, by the store's clock."""
        return to_datetime(self._pulled.lease.epoch)

    @property
    def cancel(self) -> CancelToken:
        """Tells that the job's cancellation was requested, or that its lock is lost."""
        return self._pulled.cancel

    @property
    def held(self) -> bool:
        """Whether it is yours, as far as is known."""
        return self._pulled.held

    def _section(self, name: str) -> bytes | None:
        return self._pulled.section(name) if self._pulled.has(name) else None

    async def fetch_vm_state(self) -> bytes | None:
        """The ``vm_state``, read now unless the job was dequeued with it. Raises ``LeaseLost``."""
        return await self._pulled.load("vm_state")

    # -- the draft

    def set_state(self, state: JobState | str, *, error: str | None = None) -> None:
        """``completed``, ``failed``, ``available`` or ``paused``; see ``PulledJob.set_state``."""
        self._pulled.set_state(check_state(state), error=error)

    def set_queue(self, queue_name: str) -> None:
        self._pulled.set_queue(queue_name)

    def set_priority(self, priority: int) -> None:
        self._pulled.set_priority(priority)

    def set_scheduled(self, at: datetime) -> None:
        self._pulled.set_scheduled(at)

    def set_vm_state(self, body: bytes | None) -> None:
        """None clears it."""
        self._pulled.set_vm_state(body)

    def set_parameters(self, body: bytes | None) -> None:
        """None clears them."""
        self._pulled.set_parameters(body)

    def set_metadata(self, body: bytes | None) -> None:
        """None clears it."""
        self._pulled.set_metadata(body)

    def set_blob(self, body: bytes | None) -> None:
        """None clears it."""
        self._pulled.set_blob(body)

    def release(self) -> Flush:
        """Store the draft and give up the lock; await it to know that it is stored. See ``PulledJob.release``."""
        return self._pulled.release()

    def put_off(self, error: str, longest: float) -> Flush:
        """Give it back after an error, due twice as late after each attempt that failed, but at most ``longest``
        seconds from now."""
        seconds = min(2.0 ** min(self._pulled.attempt, 30), longest)
        self._pulled.reset()
        self._pulled.set_state(JobState.AVAILABLE, error=error)
        self._pulled.set_delay(seconds)
        return self._pulled.release()

    async def heartbeat(self) -> None:
        """Renew the lock now. The worker does that by itself. Raises ``LeaseLost``."""
        await self._pulled.heartbeat()

    def __repr__(self) -> str:
        return f"Job({self.id}, queue_name={self.queue_name!r}, team_id={self.team_id}, held={self.held})"
