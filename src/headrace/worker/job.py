"""The job as its handler sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from headrace.core.progress import NOTED, Noted, check_progress
from headrace.errors import ConfigError
from headrace.seam.records import Leased, Settlement
from headrace.text import shown
from headrace.types import SECTIONS
from headrace.worker.current import Say
from headrace.worker.job_facts import JobFacts
from headrace.worker.part_sender import PartSender

P = TypeVar("P")

ReadSection = Callable[[Leased, str], Awaitable[bytes | None]]
"""Reads a section of a running job."""


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
        may be running the job. No stop is asked for, as the lease may still be good. A handler whose work must not be
        done twice at the same time should check this before it goes on."""
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
        """Block this thread until a stop is asked for, or the timeout is over. Returns whether one was asked for."""
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
    to other systems too. It is not a count: most often it is the store's clock, in microseconds.

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
    """How a handler completes its job in its own transaction."""

    settle: Callable[[Any], Settlement | None]
    """What to store for this result; None if the job has been given up on. When the lease ends from now on, the worker
    assumes that the transaction has committed."""
    disown: Callable[[], None]
    """The transaction did not commit."""


class Job(JobFacts, Generic[P]):
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

    __slots__ = (
        "_completion",
        "_holder",
        "_numbers",
        "_read",
        "_say",
        "_sender",
        "cancel",
        "payload",
        "sections",
        "worker",
    )

    def __init__(
        self,
        leased: Leased,
        payload: P,
        holder: str,
        cancel: CancelToken,
        sections: Mapping[str, bytes],
        completion: Completion | None = None,
        read: ReadSection | None = None,
        say: Say | None = None,
        sender: PartSender | None = None,
        worker: str = "",
    ) -> None:
        self._leased = leased
        self._say = say
        self._sender = sender
        self._numbers = count(1)
        self._completion = completion
        self._read = read
        self._holder = holder
        self.payload = payload
        self.cancel = cancel
        self.sections = sections
        """Decoded bytes of the sections other than ``parameters``, of those that the task asks for."""
        self.worker = worker
        """The name of the worker that runs it."""

    async def load(self, section: str) -> bytes | None:
        """The bytes of a section, which is read now unless the job came with it; None if there is none.

        ``@app.task(sections=…)`` says which sections jobs come with. Raises ``LeaseLost``, ``PayloadError`` if it
        cannot be read, and ``Unavailable`` while the store, or the object store, is away: such an error ends this run,
        but counts as no attempt if the object store raised it.
        """
        if section not in SECTIONS[1:]:
            raise ValueError(f"section: expected one of {', '.join(SECTIONS[1:])}, got {shown(section)}")
        if section in self.sections or section not in self._leased.left or self._read is None:
            return self.sections.get(section)
        return await self._read(self._leased, section)

    def progress(self, done: float | None, note: str = "") -> Noted:
        """Say how far the job has come: ``done`` from 0 to 1, or None if you do not know.

        It costs next to nothing, from any thread, however often it is called. The last word goes to the store with the
        next beat of the worker, every few seconds, and stays there until this run ends: ``handle.progress()``,
        ``headrace job show`` and ``headrace top`` show it. In async code it may be awaited.
        """
        said = check_progress(done, note)
        if self._say is not None:
            self._say(self._leased, said)
        return NOTED

    async def send(self, value: Any) -> None:
        """Send a part of what the job makes, to whoever reads ``handle.stream()``: any value that JSON can carry, up to
        16 KiB. Returns when the store has it; parts that come meanwhile share the next trip.

        The store keeps the latest 1,000 parts, for an hour. If the job runs again, its parts begin again. Raises
        ``PayloadTooLarge``, and ``Unavailable`` if the store stays away.
        """
        sender = self._its_sender()
        await sender.send(sender.part(self._leased, next(self._numbers), value))

    def send_sync(self, value: Any) -> None:
        """The same for a plain function in a thread."""
        self._its_sender().wait_for(self.send(value))

    def _its_sender(self) -> PartSender:
        if self._sender is None:
            raise ConfigError(f"expected a job that a worker runs, got {self!r}; use the handler's own job")
        return self._sender

    @property
    def lease(self) -> Lease:
        return Lease(self.id, self._leased.epoch, self._holder)

    def __repr__(self) -> str:
        return f"Job({self.id}, task={self.task!r}, queue={self.queue!r}, attempt={self.attempt})"


def completion(job: Job[Any]) -> Completion:
    """How the handler of this job completes it in its own transaction."""
    if job._completion is None:
        raise ConfigError(
            f"expected a job that a worker runs, got {job!r}, which has no lease; use the handler's own job"
        )
    return job._completion
