"""The job as its handler sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from headrace.core.headers import SLOT, read_headers
from headrace.errors import ConfigError
from headrace.seam.instants import to_datetime
from headrace.seam.records import Leased, Settlement

P = TypeVar("P")


class CancelToken:
    """Tells a handler that it should stop: cancelled, timed out, lease lost, or the worker is going down.

    An async handler is cancelled anyway. A handler in a thread looks at ``requested``, waits on ``wait``, or calls
    ``check`` at safe points.

    >>> from headrace import CancelToken
    >>> def export(rows: list[str], cancel: CancelToken) -> None:  # in a handler: export(rows, job.cancel)
    ...     for row in rows:
    ...         cancel.check()
    ...         print(row)
    >>> cancel = CancelToken()
    >>> cancel.request("worker stopping")
    >>> export(["one", "two"], cancel)
    Traceback (most recent call last):
        ...
    asyncio.exceptions.CancelledError: worker stopping
    """

    __slots__ = ("_event", "_lock", "doubtful", "given_up", "reason")

    def __init__(self) -> None:
        self.reason = ""
        self.doubtful = False
        """Whether the lease has run out by this worker's own clock while the store could not be reached: another worker
        may run the job by now. No stop is asked for, as the lease may still be good; a handler whose work must not be
        done twice at the same time looks at this before it goes on."""
        self.given_up = False
        """Whether the worker has settled the job without waiting for its handler any longer."""
        self._event: threading.Event | None = None
        self._lock = threading.Lock()

    @property
    def requested(self) -> bool:
        """Whether the handler has been asked to stop."""
        return bool(self.reason)

    def request(self, reason: str) -> None:
        """Ask the handler to stop; the first reason stays."""
        with self._lock:
            self.reason = self.reason or reason
            if self._event is not None:
                self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until a stop is asked for, and tell whether it was."""
        with self._lock:
            self._event = self._event or threading.Event()
            if self.reason:
                self._event.set()
        return self._event.wait(timeout)

    def check(self) -> None:
        """Raise ``asyncio.CancelledError`` if a stop has been asked for."""
        if self.reason:
            raise asyncio.CancelledError(self.reason)


class Lease:
    """The right to run one job. ``epoch`` rises with every claim, and none is given out twice, so it may fence writes
    to other systems too. It is no count: most often it is the store's clock, in microseconds.

    >>> from uuid import UUID
    >>> from headrace import Lease
    >>> reports = {UUID(int=7): (2, "by the new worker")}  # a table of yours: job id -> (epoch, text)
    >>> def save(lease: Lease, text: str) -> None:  # in a handler: save(job.lease, text)
    ...     if lease.epoch >= reports.get(lease.id, (0, ""))[0]:
    ...         reports[lease.id] = (lease.epoch, text)
    >>> save(Lease(UUID(int=7), epoch=1, holder="worker-1"), "by the stale worker")
    >>> reports[UUID(int=7)]
    (2, 'by the new worker')
    """

    __slots__ = ("epoch", "holder", "id")

    def __init__(self, id: UUID, epoch: int, holder: str) -> None:
        self.id = id
        self.epoch = epoch
        self.holder = holder

    def __repr__(self) -> str:
        return f"Lease({self.id}, epoch={self.epoch})"


class Completion(NamedTuple):
    """How a handler completes its job in a transaction of its own."""

    settle: Callable[[Any], Settlement | None]
    """What to store for this result; None if the job has been given up on. From now on the worker takes the end of the
    lease for that of the transaction."""
    disown: Callable[[], None]
    """It was not stored."""


class Job(Generic[P]):
    """A running job: what was enqueued, and how often it has been tried.

    ``attempt`` counts failed attempts so far (0 on the first run); ``lost`` counts consecutive times that a worker
    vanished while it held this job.

    >>> from headrace import App, Job, SyncApp
    >>> app = App("memory://")
    >>> @app.task(queue="mail")
    ... def welcome(job: Job[None], user_id: int) -> None:
    ...     print(f"user {user_id}, from {job.queue}, {job.attempt} failed before")
    >>> with SyncApp(app) as jobs:
    ...     handle = jobs.enqueue(welcome, 42)
    ...     jobs.drain()
    user 42, from mail, 0 failed before
    """

    __slots__ = ("_completion", "_holder", "_leased", "cancel", "payload", "sections")

    def __init__(
        self,
        leased: Leased,
        payload: P,
        holder: str,
        cancel: CancelToken,
        sections: Mapping[str, bytes],
        completion: Completion | None = None,
    ) -> None:
        self._completion = completion
        self._leased = leased
        self._holder = holder
        self.payload = payload
        self.cancel = cancel
        self.sections = sections
        """Decoded bytes of the sections other than ``parameters``."""

    @property
    def id(self) -> UUID:
        return UUID(bytes=self._leased.id)

    @property
    def task(self) -> str:
        return self._leased.task

    @property
    def queue(self) -> str:
        return self._leased.queue

    @property
    def key(self) -> str | None:
        """The dedup name it was enqueued under."""
        return self._leased.key

    @property
    def tenant(self) -> str:
        return self._leased.tenant

    @property
    def group(self) -> str | None:
        """Those of its queue with which it takes turns."""
        return self._leased.group

    @property
    def priority(self) -> int:
        return self._leased.priority

    @property
    def attempt(self) -> int:
        return self._leased.attempt

    @property
    def lost(self) -> int:
        return self._leased.lost

    @property
    def max_attempts(self) -> int | None:
        """As given at the enqueue; None leaves it to the task."""
        return self._leased.max_attempts

    @property
    def run_at(self) -> datetime:
        """When it became due."""
        return to_datetime(self._leased.run_at)

    @property
    def enqueued_at(self) -> datetime:
        return to_datetime(self._leased.enqueued_at)

    @property
    def headers(self) -> dict[str, str]:
        """The notes that travel with the job."""
        return read_headers(self._leased.headers)

    @property
    def slot(self) -> datetime | None:
        """The instant that a schedule made the job for, whatever jitter and retries made of ``run_at``; None for a job
        that was enqueued."""
        slot = self.headers.get(SLOT, "").partition(":")[2]
        return to_datetime(int(slot)) if slot.removeprefix("-").isdecimal() else None

    @property
    def lease(self) -> Lease:
        return Lease(self.id, self._leased.epoch, self._holder)

    def __repr__(self) -> str:
        return f"Job({self.id}, task={self.task!r}, queue={self.queue!r}, attempt={self.attempt})"


def completion(job: Job[Any]) -> Completion:
    """How the job is completed in a transaction of its handler's own."""
    if job._completion is None:
        raise ConfigError(
            f"expected a job that a worker runs, got {job!r} of your own making; there is no lease to end"
        )
    return job._completion
